package region

import (
	"sync"
	"time"

	"github.com/weirhq/weir/counter"
)

const (
	// believeFor is how long a home's refusal is believed at most without asking again, since
	// tokens may be given back there.
	believeFor = 250 * time.Millisecond
	// maxRefusals bounds how many refusals are remembered.
	maxRefusals = 1 << 14
)

// refusals remembers what homes refused recently, so that clients who keep trying cost the homes no
// work.
type refusals struct {
	believed time.Duration // how long a refusal is believed
	mu       sync.Mutex
	by       map[string]refusal
}

type refusal struct {
	n  int64
	at time.Time
	counter.Result
}

// find returns a remembered refusal that was for the same cost or less, with its times moved on to
// now.
func (r *refusals) find(c *counter.Charge) (counter.Result, bool) {
	if c.Peek || c.Hold != nil { // a repeated check may be known to the home already
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
