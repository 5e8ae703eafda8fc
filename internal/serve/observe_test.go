package serve

import (
	"slices"
	"testing"

	"github.com/weirhq/weir"
)

func TestEveryObserverIsTold(t *testing.T) {
	var told []string
	observer := func(name string) func(*weir.Observation) {
		return func(*weir.Observation) { told = append(told, name) }
	}
	for _, c := range []struct {
		observers []func(*weir.Observation)
		want      []string
	}{
		{[]func(*weir.Observation){observer("a")}, []string{"a"}},
		{[]func(*weir.Observation){nil, observer("a"), nil, observer("b")}, []string{"a", "b"}},
	} {
		told = nil
		tell(c.observers...)(&weir.Observation{})
		if !slices.Equal(told, c.want) {
			t.Errorf("told %v, want %v", told, c.want)
		}
	}
	if tell(nil, nil) != nil {
		t.Error("nobody wants to know, and there is an observer")
	}
}
