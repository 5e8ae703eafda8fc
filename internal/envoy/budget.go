package envoy

import (
	"context"
	"sync"
	"time"
)

// Envoy waits 20 ms for an answer by default, and then lets the request pass. An answer by the
// failure modes, a moment before that, is better than none.
const (
	// unhurried is the store's budget for a caller that says nothing of its own.
	unhurried = 15 * time.Millisecond
	// margin is what of a caller's time is kept for the way back; of a short one, a quarter is, but at least what a late
	// timer and the way take, up to half of it.
	margin = 5 * time.Millisecond
	least  = 2 * time.Millisecond
)

// budget is a context that ends when the store's time for a request is over. Most requests are
// decided without waiting, so its timer begins only when somebody asks to be told.
type budget struct {
	context.Context
	deadline time.Time
	once     sync.Once
	timed    context.Context
	cancel   context.CancelFunc
}

var _ context.Context = (*budget)(nil)

func withBudget(parent context.Context) *budget {
	now := time.Now()
	b := &budget{Context: parent, deadline: now.Add(unhurried)}
	if d, ok := parent.Deadline(); ok {
		left := d.Sub(now)
		b.deadline = now.Add(left - max(min(margin, left/4), min(least, left/2)))
	}
	return b
}

func (b *budget) start() context.Context {
	b.once.Do(func() { b.timed, b.cancel = context.WithDeadline(b.Context, b.deadline) })
	return b.timed
}

// end frees the timer.
func (b *budget) end() {
	if b.once.Do(func() { b.timed = b.Context }); b.cancel != nil {
		b.cancel()
	}
}

func (b *budget) Deadline() (time.Time, bool) { return b.deadline, true }
func (b *budget) Done() <-chan struct{}       { return b.start().Done() }

func (b *budget) Err() error {
	if time.Now().Before(b.deadline) {
		return b.Context.Err()
	}
	return b.start().Err()
}
