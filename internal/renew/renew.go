// Package renew keeps the concurrency slots of requests in flight. A slot that isn't renewed ends
// by itself, so a node that dies leaks none.
package renew

import (
	"context"
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
	every, done := ttl/3, make(chan struct{})
	held, release := context.WithCancel(context.Background())
	timer := time.NewTimer(next(every))
	go func() {
		defer close(done)
		defer timer.Stop()
		for {
			select {
			case <-timer.C:
			case <-held.Done():
				return
			}
			// Give up on the store when the next renewal is due, and try again soon while there is time
			// left.
			begun, due := time.Now(), next(every)
			attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), every)
			err := renew(attempt)
			cancel()
			if err != nil {
				begun, due = time.Now(), every/3
				go fail(err) // so that stop doesn't wait for fail
			}
			timer.Reset(max(0, time.Until(begun.Add(due)))) // the renewal may have been slow
		}
	}()
	return func() {
		release()
		<-done
	}
}

// next returns how long to wait: until a moment of the grid, but at least two thirds of every.
func next(every time.Duration) time.Duration {
	now := time.Now()
	at := now.Add(every).Truncate(grid)
	return max(at.Sub(now), every*2/3)
}
