package envoy

import (
	"context"
	"sync"
	"sync/atomic"
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
	// timeSlices is how many parts the time of a caller without a deadline is cut into, to measure it
	// in the node's own time.
	timeSlices = 3
)

// budget is a context that ends when the store's time for a request is over. Its timer starts only
// when someone asks for it, since most requests are decided without waiting.
//
// A caller's deadline is in real time: an answer after it is never read. Without a deadline, the
// time is the node's own, like the store's timeout: it stands still while the node is late.
// Otherwise, failure modes on an overloaded node would admit requests that Redis has refused, in
// replies that weren't read yet.
type budget struct {
	context.Context
	deadline time.Time
	hurried  bool // the deadline is the caller's
	once     sync.Once
	timed    context.Context
	cancel   context.CancelFunc

	stop func()      // ends the timer of the node's own time; nil without one
	over atomic.Bool // that time is over
}

var _ context.Context = (*budget)(nil)

func withBudget(parent context.Context) *budget {
	now := time.Now()
	b := &budget{Context: parent, deadline: now.Add(unhurried)}
	var d time.Time
	if d, b.hurried = parent.Deadline(); b.hurried {
		left := d.Sub(now)
		b.deadline = now.Add(left - max(min(margin, left/4), min(least, left/2)))
	}
	return b
}

func (b *budget) start() context.Context {
	b.once.Do(func() {
		if b.hurried {
			b.timed, b.cancel = context.WithDeadline(b.Context, b.deadline)
			return
		}
		b.timed, b.cancel = context.WithCancel(b.Context)
		b.stop = patient.After(max(time.Until(b.deadline), timeSlices*time.Millisecond), timeSlices, func() {
			b.over.Store(true)
			b.cancel()
		})
	})
	return b.timed
}

func (b *budget) end() {
	if b.once.Do(func() { b.timed = b.Context }); b.cancel != nil {
		b.cancel()
	}
	if b.stop != nil {
		b.stop()
	}
}

func (b *budget) Deadline() (time.Time, bool) { return b.deadline, true }
func (b *budget) Done() <-chan struct{}       { return b.start().Done() }

func (b *budget) Err() error {
	switch {
	case b.over.Load():
		return context.DeadlineExceeded
	case time.Now().Before(b.deadline):
		return b.Context.Err()
	}
	return b.start().Err()
}
