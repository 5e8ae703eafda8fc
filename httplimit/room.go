package httplimit

import (
	"sync"
	"sync/atomic"

	"github.com/weirhq/weir"
)

const (
	// DefaultMaxWaiting is the default of [Options.MaxWaiting].
	DefaultMaxWaiting = 4096
	// maxAhead bounds the bytes of all bodies that are read ahead.
	maxAhead = 16 << 20
)

// room bounds how many requests wait in queues. A queue's length only bounds the requests of one
// counter, and clients can create counters; every waiting request costs a goroutine and a
// connection. A single rule may take half of the room.
type room struct {
	places int
	ahead  atomic.Int64 // bytes read ahead and not yet handed over

	mu     sync.Mutex
	taken  int            // guarded by mu
	byRule map[string]int // guarded by mu; only rules with waiting requests
}

func newRoom(places int) *room {
	if places <= 0 {
		places = DefaultMaxWaiting
	}
	return &room{places: places, byRule: map[string]int{}}
}

// enter takes a place if one is free.
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

// queueOf returns the rule in whose queue a request waits.
func queueOf(d *weir.Decision) string {
	for _, l := range d.Limits() {
		if l.Policy.Limit.Algorithm == weir.LeakyQueue && !l.Policy.Shadow {
			return l.Policy.Rule
		}
	}
	return d.Rule
}
