package envoy

import (
	"context"
	"os"
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

// withBudget returns a context that ends when the store's time for a request is used up.
//
// If the caller has a deadline, it is in real time, because later responses aren't read. Without a
// deadline, the time excludes delays of this node, like the store's timeout. Otherwise, an
// overloaded node would admit requests by failure modes although a refusal by Redis has already
// arrived, but hasn't been read.
func withBudget(parent context.Context) (context.Context, context.CancelFunc) {
	if d, hurried := parent.Deadline(); hurried {
		left := time.Until(d)
		return context.WithTimeout(parent, left-max(min(margin, left/4), min(least, left/2)))
	}
	ctx, cancel := patient.WithTimeout(parent, unhurried)
	return &budget{ctx, time.Now().Add(unhurried)}, cancel
}

// budget is a context with the deadline that it has if the node isn't late. Package patient uses
// that deadline.
type budget struct {
	context.Context
	deadline time.Time
}

func (b *budget) Deadline() (time.Time, bool) { return b.deadline, true }

func (b *budget) Err() error {
	if context.Cause(b.Context) == os.ErrDeadlineExceeded {
		return context.DeadlineExceeded
	}
	return b.Context.Err()
}
