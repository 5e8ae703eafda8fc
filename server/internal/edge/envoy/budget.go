package envoy

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/patient"
)

// By default, Envoy waits 20 ms for a response, and then lets the request pass. So the store gets less time than that:
// a decision by the failure modes is better than no decision.
const (
	// unhurried is how long the store may take if the caller has no deadline.
	unhurried = 15 * time.Millisecond
	// margin is how long before the caller's deadline the store's time ends, so that the response arrives in time. If
	// less time is left than four margins, it is a quarter of the time that is left, but at least least, because timers
	// may be late and the network takes time, and at most half of the time.
	margin = 5 * time.Millisecond
	least  = 2 * time.Millisecond
)

// budget is a context that ends when the store's time for a request is used up. Its timer starts only when the store
// uses the context, because a decision in memory doesn't need it.
//
// If the caller has a deadline, the budget is real time, because the caller doesn't read later responses. Without a
// deadline, the budget excludes delays of this node, as the store's timeout does. Otherwise, an overloaded node would
// admit requests by failure modes although a refusal by Redis has arrived, but hasn't been read.
type budget struct {
	context.Context // the caller's context
	deadline        time.Time
	hurried         bool // the caller has a deadline

	once   sync.Once // starts the timer
	timed  context.Context
	cancel context.CancelFunc
}

func withBudget(caller context.Context) (context.Context, context.CancelFunc) {
	now := time.Now()
	b := &budget{Context: caller, deadline: now.Add(unhurried)}
	var d time.Time
	if d, b.hurried = caller.Deadline(); b.hurried {
		left := d.Sub(now)
		b.deadline = d.Add(-max(min(margin, left/4), min(least, left/2)))
	}
	return b, b.end
}

func (b *budget) start() context.Context {
	b.once.Do(func() {
		if b.hurried {
			b.timed, b.cancel = context.WithDeadline(b.Context, b.deadline)
		} else {
			b.timed, b.cancel = patient.WithTimeout(b.Context, unhurried)
		}
	})
	return b.timed
}

func (b *budget) end() {
	b.once.Do(func() { b.timed, b.cancel = b.Context, func() {} }) // the timer hasn't started, and won't
	b.cancel()
}

// Deadline returns when the budget ends, provided that the node isn't held up.
func (b *budget) Deadline() (time.Time, bool) { return b.deadline, true }

func (b *budget) Done() <-chan struct{} { return b.start().Done() }

func (b *budget) Err() error {
	if context.Cause(b.start()) == os.ErrDeadlineExceeded {
		return context.DeadlineExceeded
	}
	return b.timed.Err()
}
