// Package renew keeps the slots of requests that are in flight: a slot that nobody renews is free again after a while, so
// that a node that dies leaks none.
package renew

import (
	"context"
	"sync"
	"time"

	"github.com/weirhq/weir"
)

// grid is what the times of renewals are rounded to, so that those of one node reach the store together, and share its calls.
const grid = time.Second

// Keep renews the slots of a request until stop is called, three times in the time that they last. Whoever calls stop
// releases them then: stop waits for a renewal that is under way, which would take a released slot again. Fail is told of
// renewals that failed, in a goroutine of its own, and maybe after stop; another renewal follows.
func Keep(ctx context.Context, l *weir.Limiter, d *weir.Decision, fail func(error)) (stop func()) {
	ttl := d.Slots()
	if ttl == 0 {
		return func() {}
	}
	k := &keeper{ctx: context.WithoutCancel(ctx), limiter: l, held: *d, every: ttl / 3}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(k.next(), func() {
		if err := k.renew(); err != nil {
			fail(err) // without the lock: stop doesn't wait for whom it tells
		}
	})
	return k.stop
}

type keeper struct {
	ctx     context.Context
	limiter *weir.Limiter
	held    weir.Decision
	every   time.Duration

	mu      sync.Mutex // guards what follows
	timer   *time.Timer
	stopped bool
	renewal chan struct{} // closed when the renewal that is under way ends; nil without one
}

// next is how long to wait: at least two thirds of every, and until a moment of the grid, if there is one by then.
func (k *keeper) next() time.Duration {
	now := time.Now()
	at := now.Add(k.every).Truncate(grid)
	return max(at.Sub(now), k.every*2/3)
}

// renew makes the slots last from now on. A store that doesn't answer is given up on when the next renewal is due.
func (k *keeper) renew() error {
	done := make(chan struct{})
	if !k.begin(done) {
		return nil
	}
	ctx, cancel := context.WithTimeout(k.ctx, k.every)
	defer cancel()
	due := time.Now().Add(k.next()) // from its beginning: it may take long
	err := k.limiter.Renew(ctx, &k.held)
	k.mu.Lock()
	defer k.mu.Unlock()
	close(done)
	if k.renewal = nil; !k.stopped {
		k.timer.Reset(max(0, time.Until(due)))
	}
	return err
}

// begin reports whether a renewal may begin. It ends by closing done.
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

// last ends the renewals, and returns the one that is under way.
func (k *keeper) last() chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	k.timer.Stop()
	return k.renewal
}
