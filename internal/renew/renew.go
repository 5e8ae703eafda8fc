// Package renew keeps the concurrency slots of requests in flight. A slot that isn't renewed expires, so a node that
// dies doesn't leak slots.
package renew

import (
	"context"
	"time"

	"github.com/weirhq/weir"
)

// grid is the unit to which renewal times are rounded, so that a node's renewals coincide and can share calls to the
// store.
const grid = time.Second

// Keep renews a request's slots, three times per lifetime, until stop is called. stop waits for a renewal in progress,
// because that renewal could otherwise undo a later release of the slots. Errors of renewals are passed to fail, in a
// separate goroutine and possibly after stop. A failed renewal is retried.
func Keep(ctx context.Context, l *weir.Limiter, d *weir.Decision, fail func(error)) (stop func()) {
	held := *d
	return Every(ctx, d.Slots(), func(ctx context.Context) error { return l.Renew(ctx, &held) }, fail)
}

// Every is like [Keep], but calls the function renew to renew slots. ttl is how long the slots last; 0 means that there
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
			// Give up on the store when the next renewal is due. After an error, try again soon, while the slots last.
			begun, due := time.Now(), next(every)
			attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), every)
			err := renew(attempt)
			cancel()
			if err != nil {
				begun, due = time.Now(), every/3
				go fail(err) // in a goroutine, so that stop doesn't wait for fail
			}
			timer.Reset(max(0, time.Until(begun.Add(due)))) // subtract the time that the renewal took
		}
	}()
	return func() {
		release()
		<-done
	}
}

// next returns how long to wait for the next renewal: until a multiple of grid, but at least two thirds of every.
func next(every time.Duration) time.Duration {
	now := time.Now()
	at := now.Add(every).Truncate(grid)
	return max(at.Sub(now), every*2/3)
}
