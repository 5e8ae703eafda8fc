package budget

import "sync"

// told remembers how many thresholds of a budget in a window this node has told. It has two
// generations of bounded size, so clients that make up names evict what it knows of others, and
// don't make it grow. What it has forgotten, the store knows.
type told struct {
	mu         sync.RWMutex
	young, old map[window]int // guarded by mu
}

// window is a budget of a client in a window.
type window struct {
	policy, subject uint64 // the subject is a hash
	end             int64  // Unix seconds
	refusals        bool   // about a refusal before the budget is used up, which is told apart from thresholds
}

// generation is how many windows a generation has.
const generation = 8192

// count returns how many thresholds were told.
func (t *told) count(w window) int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return max(t.young[w], t.old[w])
}

// raise has tell tell of the thresholds up to n that weren't told, and remembers them if it does.
func (t *told) raise(w window, n int, tell func(from int) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := max(t.young[w], t.old[w])
	if was >= n || !tell(was) {
		return
	}
	if t.young == nil || len(t.young) >= generation {
		t.young, t.old = map[window]int{}, t.young
	}
	t.young[w] = n
}
