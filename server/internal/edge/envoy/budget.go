package envoy

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/patient"
)

// Envoy waits 20 ms for an answer by default and then lets the request pass. So the store gets less
// time than that: a decision by the failure modes is better than none.
const (
	// unhurried is the store's time if the caller has no deadline.
	unhurried = 15 * time.Millisecond
	// margin is how much of the caller's time is reserved for the response to travel back. If the
	// deadline is short, it is a quarter of the time, but not less than least, which late timers
	// and the network need, and not more than half.
	margin = 5 * time.Millisecond
	least  = 2 * time.Millisecond
)

// budget is a context that ends when the store's time for a request is used up. Its timer starts when
// the store first asks for it, because a decision in memory never does.
//
// If the caller has a deadline, the time is real time, because later responses aren't read. Without a
// deadline, the time excludes delays of this node, like the store's timeout. Otherwise, an
// overloaded node would admit requests by failure modes although a refusal by Redis has already
// arrived, but hasn't been read.
type budget struct {
	context.Context // the caller's
	deadline        time.Time
	hurried         bool // the caller has a deadline

	once   sync.Once // guards the start of the timer
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
	b.once.Do(func() { b.timed, b.cancel = b.Context, func() {} }) // no timer is running
	b.cancel()
}

// Deadline returns the time at which the budget ends if the node isn't late.
func (b *budget) Deadline() (time.Time, bool) { return b.deadline, true }

func (b *budget) Done() <-chan struct{} { return b.start().Done() }

func (b *budget) Err() error {
	if context.Cause(b.start()) == os.ErrDeadlineExceeded {
		return context.DeadlineExceeded
	}
	return b.timed.Err()
}
