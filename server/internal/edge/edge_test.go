package edge

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// However many keys callers use, the cache stays small, and keeps those in use.
func TestCacheIsBounded(t *testing.T) {
	var c Cache[int, *int]
	fresh := func(key int) (int, *int, error) { return key, &key, nil }
	used, err := c.Get(-1, fresh)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 * Generation {
		if made, err := c.Get(i, fresh); err != nil || *made != i {
			t.Fatalf("%v, %v", made, err)
		}
		if n := len(c.young) + len(c.old); n > 2*Generation {
			t.Fatalf("%d values are kept", n)
		}
		if i%Generation == 0 {
			if again, _ := c.Get(-1, fresh); again != used {
				t.Fatal("a value in use was evicted")
			}
		}
	}
}

func TestAnErrorIsNotKept(t *testing.T) {
	var c Cache[int, int]
	wrong := errors.New("wrong")
	if _, err := c.Get(1, func(int) (int, int, error) { return 0, 0, wrong }); !errors.Is(err, wrong) {
		t.Fatal(err)
	}
	if v, err := c.Get(1, func(key int) (int, int, error) { return key, 7, nil }); v != 7 || err != nil {
		t.Error(v, err)
	}
}

// The cache stores a value under the key that the maker returned, also when the value moves from the old generation to
// the young one. The key of the request may be part of a larger text.
func TestTheCacheKeepsTheMakersKey(t *testing.T) {
	var c Cache[string, bool]
	mine := strings.Clone("mine")
	if _, err := c.Get("mine", func(string) (string, bool, error) { return mine, true, nil }); err != nil {
		t.Fatal(err)
	}
	for i := range Generation {
		_, _ = c.Get(strconv.Itoa(i), func(key string) (string, bool, error) { return key, false, nil })
	}
	if _, old := c.old[mine]; !old {
		t.Fatal("it isn't old")
	}
	_, _ = c.Get(strings.Clone("mine"), nil)
	for key := range c.young {
		if key == mine && unsafe.StringData(key) != unsafe.StringData(mine) {
			t.Error("the key that was asked for is kept")
		}
	}
}
