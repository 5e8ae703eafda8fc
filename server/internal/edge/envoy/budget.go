package envoy

import (
	"context"
	"os"
	"time"

	"github.com/weirhq/weir/internal/patient"
)

// Envoy waits 20 ms for an answer by default and then lets the request pass. An answer by the
// failure modes, just before that, is better than none.
const (
	// unhurried is the store's budget for a caller without a deadline.
	unhurried = 15 * time.Millisecond
	// margin is the part of a caller's time that is reserved for the way back. For a short deadline
	// it is a quarter, but at least least, which a late timer and the way take, and at most half.
	margin = 5 * time.Millisecond
	least  = 2 * time.Millisecond
)

// withBudget returns a context that ends when the store's time for a request is over.
//
// A caller's deadline is in real time: an answer after it is never read. Without a deadline, the
// time is the node's own, like the store's timeout: it stands still while the node is late.
// Otherwise, failure modes on an overloaded node would admit requests that Redis has refused, in
// replies that weren't read yet.
func withBudget(parent context.Context) (context.Context, context.CancelFunc) {
	if d, hurried := parent.Deadline(); hurried {
		left := time.Until(d)
		return context.WithTimeout(parent, left-max(min(margin, left/4), min(least, left/2)))
	}
	ctx, cancel := patient.WithTimeout(parent, unhurried)
	return &budget{ctx, time.Now().Add(unhurried)}, cancel
}

// budget adds to a context of package patient the deadline that it has if the node is punctual.
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
