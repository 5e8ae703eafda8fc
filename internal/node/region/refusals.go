package region

import (
	"sync"
	"time"

	"github.com/weirhq/weir/counter"
)

const (
	// believeFor is the longest that a home's refusal is repeated here without asking the home again, since tokens may
	// be given back there.
	believeFor = 250 * time.Millisecond
	// maxRefusals bounds how many refusals are remembered.
	maxRefusals = 1 << 14
)

// refusals remembers recent refusals by homes, so that clients that keep trying don't load the homes.
type refusals struct {
	believed time.Duration // how long a refusal is repeated
	mu       sync.Mutex
	by       map[string]refusal
}

type refusal struct {
	n  int64
	at time.Time
	counter.Result
}

// find returns a remembered refusal of a charge with the same cost or less. It subtracts the time that has passed from
// RetryAfter and ResetAfter.
func (r *refusals) find(c *counter.Charge) (counter.Result, bool) {
	if c.Peek || c.Hold != nil { // the home may know a repeated check already
		return counter.Result{}, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.by[keyOf(&c.Counter)]
	age := time.Since(known.at)
	switch {
	case !ok || c.N < known.n || age >= r.believed:
		return counter.Result{}, false
	case known.RetryAfter != counter.Never && age >= known.RetryAfter:
		return counter.Result{}, false
	}
	out := known.Result
	if out.ResetAfter = max(0, out.ResetAfter-age); out.RetryAfter != counter.Never {
		out.RetryAfter -= age
	}
	return out, true
}

func (r *refusals) note(c *counter.Charge, result *counter.Result) {
	if result.Allowed || result.Err != nil || c.Peek || r.believed == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.by) >= maxRefusals || r.by == nil {
		r.by = map[string]refusal{}
	}
	r.by[keyOf(&c.Counter)] = refusal{c.N, time.Now(), *result}
}
