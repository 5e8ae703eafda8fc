package budget

import "sync"

// told remembers, for each budget and window, for how many thresholds this node has sent events. It has two generations
// of bounded size. If clients make up names, they evict older entries, but don't use more memory. For evicted entries,
// the store still knows which events were sent.
type told struct {
	mu         sync.RWMutex
	young, old map[window]int // guarded by mu
}

// window identifies a client's budget in one window of time.
type window struct {
	policy, subject uint64 // policy is the policy's ID, and subject is a hash
	end             int64  // when the window ends, in Unix seconds
	refusals        bool   // the entry is for refusals before the budget is used up, which have an event of their own
}

const generation = 8192

// raise calls tell if events haven't been sent for all of the first n thresholds. from is how many thresholds have
// their events. If tell returns true, raise remembers that n have them.
func (t *told) raise(w window, n int, tell func(from int) bool) {
	t.mu.RLock()
	known := t.count(w) >= n
	t.mu.RUnlock()
	if known { // this is true after most decisions
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if was := t.count(w); was >= n || !tell(was) {
		return
	}
	if t.young == nil || len(t.young) >= generation {
		t.young, t.old = map[window]int{}, t.young
	}
	t.young[w] = n
}

// count returns for how many thresholds events were sent. Callers hold the lock.
func (t *told) count(w window) int { return max(t.young[w], t.old[w]) }
