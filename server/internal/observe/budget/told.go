package budget

import (
	"sync"
	"sync/atomic"
	"time"
)

// told remembers how many thresholds of a budget in a window this node has told, in a table of fixed size: clients that make
// up names replace what it knows of others, and don't make it grow. What it has forgotten, the store knows.
type told struct {
	mu   sync.Mutex // held while a set is changed
	sets [toldSets]toldSet
}

// The table is for 16,384 budgets, in 384 KiB.
const (
	toldSets = 4096
	toldWays = 4
)

// toldSet is where the budgets are whose names begin alike.
type toldSet [toldWays]struct {
	entry atomic.Uint64 // a name, with how many thresholds were told in its two lowest bits; 0: none
	end   int64         // of its window, in Unix seconds; guarded by told.mu
}

const countBits = 3

func (t *told) set(name uint64) *toldSet { return &t.sets[name>>52] } // toldSets is 2^12

// count is how many thresholds were told. It takes no lock.
func (t *told) count(name uint64) int {
	set := t.set(name)
	for i := range set {
		if e := set[i].entry.Load(); e != 0 && e&^countBits == name&^countBits {
			return int(e & countBits)
		}
	}
	return 0
}

// raise has tell tell of the thresholds up to n that weren't told, and remembers them if it does. They take the place of the
// window that ends first: of one that has ended, if there is any.
func (t *told) raise(name uint64, n int, end time.Time, tell func(from int) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.count(name)
	if was >= n || !tell(was) {
		return
	}
	set, place := t.set(name), 0
	for i := range set {
		if e := set[i].entry.Load(); e != 0 && e&^countBits == name&^countBits {
			place = i
			break
		}
		if set.ends(i) < set.ends(place) {
			place = i
		}
	}
	set[place].end = end.Unix()
	set[place].entry.Store(name&^countBits | uint64(n))
}

// ends is when the window at a place ends, and long ago if there is none.
func (s *toldSet) ends(i int) int64 {
	if s[i].entry.Load() == 0 {
		return 0
	}
	return s[i].end
}
