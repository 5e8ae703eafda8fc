package pattern

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestEmptySegmentsAreCheap checks a path with many empty segments. A wildcard may match any of them, so trying all
// combinations would take forever.
func TestEmptySegmentsAreCheap(t *testing.T) {
	var root Endpoints
	for i, endpoint := range []string{"/{a}/{b}/{c}", "/{a}/{b}/{c}/", "/{a}/x"} {
		e, err := ParseEndpoint(endpoint)
		if err != nil {
			t.Fatal(err)
		}
		root.Add(&e, int32(i))
	}
	path := []byte(strings.Repeat("/", 301) + "x/")
	if found := root.Find(path, nil); len(found) > 3*3 {
		t.Errorf("%d rules were found, of 3", len(found))
	} else if slices.Sort(found); !slices.Equal(slices.Compact(found), []int32{0, 1, 2}) {
		t.Errorf("found %v", found)
	}
}

// TestWildcardsAreFew checks the limit on wildcards. If a path has empty segments, each wildcard doubles the number of
// ways to match it.
func TestWildcardsAreFew(t *testing.T) {
	pattern := strings.Repeat("/{%}", maxWildcards)
	for i := range maxWildcards {
		pattern = strings.Replace(pattern, "%", "w"+strconv.Itoa(i), 1)
	}
	if _, err := ParseEndpoint(pattern); err != nil {
		t.Error(err)
	}
	if _, err := ParseEndpoint(pattern + "/{more}"); err == nil {
		t.Error("one more is taken")
	}
	if _, err := ParseEndpoint(pattern + "/{all...}"); err != nil {
		t.Error(err)
	}
}
