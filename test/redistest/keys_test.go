package redistest_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

func TestLasting(t *testing.T) {
	s := redistest.New(t, redistest.Options{})
	for i := range 2500 {
		must(t, s, "SET", fmt.Sprintf("weir:%d", i), "1", "EX", "1000")
	}
	must(t, s, "SET", "other", "1")
	must(t, s, "SET", "weir:version", "1")
	allow := func(key string) bool { return key == "weir:version" }
	if got, err := redistest.Lasting(t.Context(), "weir:", allow, s); err != nil || len(got) > 0 {
		t.Errorf("got %v, %v", got, err)
	}
	must(t, s, "PERSIST", "weir:7")
	must(t, s, "PERSIST", "weir:2400")
	got, err := redistest.Lasting(t.Context(), "weir:", allow, s)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []string{"weir:2400", "weir:7"}) {
		t.Errorf("got %v, %v", got, err)
	}
	if got, err := redistest.Lasting(t.Context(), "", nil, s); err != nil || len(got) != 4 {
		t.Errorf("all keys: got %v, %v", got, err)
	}
}
