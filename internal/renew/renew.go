// Package renew keeps the concurrency slots of requests in flight. A slot that isn't renewed ends
// by itself, so a node that dies leaks none.
package renew

import (
	"context"
	"sync"
	"time"

	"github.com/weirhq/weir"
)

// grid is what renewal times are rounded to, so that a node's renewals coincide and share calls to
// the store.
const grid = time.Second

// Keep renews a request's slots three times per lifetime until stop is called. stop waits for a
// renewal that is under way, so that releasing the slots afterwards can't be undone by it. fail
// receives the errors of renewals, in a goroutine of its own and possibly after stop; a failed
// renewal is retried.
func Keep(ctx context.Context, l *weir.Limiter, d *weir.Decision, fail func(error)) (stop func()) {
	held := *d
	return Every(ctx, d.Slots(), func(ctx context.Context) error { return l.Renew(ctx, &held) }, fail)
}

// Every is [Keep] for slots that a function renews. They last for ttl; 0 means that there are none.
func Every(ctx context.Context, ttl time.Duration, renew func(context.Context) error, fail func(error)) (stop func()) {
	if ttl == 0 {
		return func() {}
	}
	k := &keeper{ctx: context.WithoutCancel(ctx), renew: renew, every: ttl / 3}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(k.next(), func() {
		if err := k.run(); err != nil {
			fail(err) // without the lock, so that stop doesn't wait for fail
		}
	})
	return k.stop
}

type keeper struct {
	ctx   context.Context
	renew func(context.Context) error
	every time.Duration

	mu      sync.Mutex // guards the fields below
	timer   *time.Timer
	stopped bool
	renewal chan struct{} // closed when the current renewal ends; nil if there is none
}

// next returns how long to wait: until a moment of the grid, but at least two thirds of every.
func (k *keeper) next() time.Duration {
	now := time.Now()
	at := now.Add(k.every).Truncate(grid)
	return max(at.Sub(now), k.every*2/3)
}

// run renews the slots. It gives up on the store when the next renewal is due, and tries again
// soon while there is time left.
func (k *keeper) run() error {
	done := make(chan struct{})
	if !k.begin(done) {
		return nil
	}
	ctx, cancel := context.WithTimeout(k.ctx, k.every)
	defer cancel()
	due := time.Now().Add(k.next()) // measured from here, since the renewal may be slow
	err := k.renew(ctx)
	if err != nil {
		due = time.Now().Add(k.every / 3)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	close(done)
	if k.renewal = nil; !k.stopped {
		k.timer.Reset(max(0, time.Until(due)))
	}
	return err
}

// begin reports whether a renewal may begin. The caller closes done when the renewal ends.
func (k *keeper) begin(done chan struct{}) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return false
	}
	k.renewal = done
	return true
}

func (k *keeper) stop() {
	if renewal := k.last(); renewal != nil {
		<-renewal
	}
}

// last prevents further renewals, and returns the current one.
func (k *keeper) last() chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	k.timer.Stop()
	return k.renewal
}
