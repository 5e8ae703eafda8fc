package pattern

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A bounded search returns the same result as an unbounded one.
func TestFirstWithin(t *testing.T) {
	random := func() string {
		b := make([]byte, 1+rand.IntN(4))
		for i := range b {
			b[i] = "aab*"[rand.IntN(4)]
		}
		return string(b)
	}
	for range 2000 {
		var k Keys
		var all []string
		for i := range 1 + rand.IntN(8) {
			all = append(all, random())
			k.Add(all[i], int32(i))
		}
		key, below := random(), int32(rand.IntN(9))
		want := int32(slices.IndexFunc(all, func(p string) bool { return MatchGlob(p, key) }))
		if want >= below {
			want = -1
		}
		b := Budget(1 << 20)
		if got := k.FirstWithin(key, below, &b); got != want || b == 1<<20 {
			t.Fatalf("%q in %q below %d: %d, want %d", key, all, below, got, want)
		}
	}
}
