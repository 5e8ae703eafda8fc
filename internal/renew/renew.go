// Package renew keeps the concurrency slots of requests in flight. A slot that isn't renewed ends
// by itself, so a node that dies leaks none.
package renew

import (
	"context"
	"sync"
	"time"

	"github.com/weirhq/weir"
)

// grid is what renewal times are rounded to, so that a node's renewals coincide and can share calls
// to the store.
const grid = time.Second

// Keep renews a request's slots three times per lifetime until stop is called. stop waits for a
// renewal that is under way, so that releasing the slots afterwards can't be undone by it. fail
// receives the errors of renewals, in a goroutine of its own and possibly after stop; a failed
// renewal is retried.
func Keep(ctx context.Context, l *weir.Limiter, d *weir.Decision, fail func(error)) (stop func()) {
	held := *d
	return Every(ctx, d.Slots(), func(ctx context.Context) error { return l.Renew(ctx, &held) }, fail)
}

// Every is [Keep] for slots that a function renews. ttl is how long they last; 0 means that there
// are none.
func Every(ctx context.Context, ttl time.Duration, renew func(context.Context) error, fail func(error)) (stop func()) {
	if ttl == 0 {
		return func() {}
	}
	ctx, every := context.WithoutCancel(ctx), ttl/3
	turn := make(chan struct{}, 1) // holds a value during a renewal, and after stop
	stopped := make(chan struct{})
	var timer *time.Timer
	// run renews the slots. It gives up on the store when the next renewal is due, and tries again
	// soon while there is time left.
	run := func() error {
		select {
		case turn <- struct{}{}:
		case <-stopped:
			return nil
		}
		defer func() { <-turn }()
		ctx, cancel := context.WithTimeout(ctx, every)
		defer cancel()
		due := time.Now().Add(next(every)) // measured from here, since the renewal may be slow
		err := renew(ctx)
		if err != nil {
			due = time.Now().Add(every / 3)
		}
		timer.Reset(max(0, time.Until(due)))
		return err
	}
	turn <- struct{}{} // until the timer is set
	timer = time.AfterFunc(next(every), func() {
		if err := run(); err != nil {
			fail(err) // after the turn, so that stop doesn't wait for fail
		}
	})
	<-turn
	return sync.OnceFunc(func() {
		turn <- struct{}{}
		close(stopped)
		timer.Stop()
	})
}

// next returns how long to wait: until a moment of the grid, but at least two thirds of every.
func next(every time.Duration) time.Duration {
	now := time.Now()
	at := now.Add(every).Truncate(grid)
	return max(at.Sub(now), every*2/3)
}
