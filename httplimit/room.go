package httplimit

import (
	"sync"
	"sync/atomic"

	"github.com/weirhq/weir"
)

const (
	// DefaultMaxWaiting is how many requests may wait in queues at a time, unless [Options] say otherwise.
	DefaultMaxWaiting = 4096
	// maxAhead is how many bytes of the bodies of requests that wait are read ahead, of all of them together.
	maxAhead = 16 << 20
)

// room is where requests wait for their turn. A queue's length bounds those of one counter, and a client can invent counters; each
// request that waits costs a goroutine and a connection, so there is a bound for all of them, of which a rule has half.
type room struct {
	places int
	ahead  atomic.Int64 // bytes that were read ahead and not handed over

	mu     sync.Mutex
	taken  int            // guarded by mu
	byRule map[string]int // guarded by mu; those with any
}

func newRoom(places int) *room {
	if places <= 0 {
		places = DefaultMaxWaiting
	}
	return &room{places: places, byRule: map[string]int{}}
}

// enter takes a place, if there is one.
func (r *room) enter(rule string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken >= r.places || r.byRule[rule] >= (r.places+1)/2 {
		return false
	}
	r.taken++
	r.byRule[rule]++
	return true
}

func (r *room) leave(rule string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken--
	if r.byRule[rule]--; r.byRule[rule] == 0 {
		delete(r.byRule, rule)
	}
}

// queueOf is the rule for whose queue a request waits.
func queueOf(d *weir.Decision) string {
	for _, l := range d.Limits() {
		if l.Policy.Limit.Algorithm == weir.LeakyQueue && !l.Policy.Shadow {
			return l.Policy.Rule
		}
	}
	return d.Rule
}
