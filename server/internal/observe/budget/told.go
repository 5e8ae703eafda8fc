package budget

import "sync"

// told remembers for how many thresholds of a budget this node has sent events in a window. It has
// two generations of bounded size, so clients that make up names evict older entries instead of
// using more memory. For evicted entries, the store knows which events were sent.
type told struct {
	mu         sync.RWMutex
	young, old map[window]int // guarded by mu
}

// window is one client's budget in one window.
type window struct {
	policy, subject uint64 // the subject is a hash
	end             int64  // when the window ends, in Unix seconds
	refusals        bool   // for a refusal before the budget is used up, which has an event of its own
}

const generation = 8192

// raise calls tell if events are missing for some of the first n thresholds. From is the number of
// thresholds that have theirs. If tell returns true, raise remembers n.
func (t *told) raise(w window, n int, tell func(from int) bool) {
	t.mu.RLock()
	known := t.count(w) >= n
	t.mu.RUnlock()
	if known { // as after most decisions
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

// count returns for how many thresholds events were sent. The caller holds the lock.
func (t *told) count(w window) int { return max(t.young[w], t.old[w]) }
