package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// fill checks the keys from first to last-1 once, and those that fail again.
func fill(ctx context.Context, in *instance, first, last, goroutines int) error {
	var wg sync.WaitGroup
	var next atomic.Int64
	next.Store(int64(first))
	errs := make(chan error, goroutines)
	for range goroutines {
		wg.Go(func() {
			check := in.worker()
			for {
				n := next.Add(1) - 1
				if n >= int64(last) || ctx.Err() != nil {
					return
				}
				if err := insist(check, uint32(n)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	// The contender that is measured next must not pay for the garbage.
	debug.FreeOSMemory()
	close(errs)
	if err := ctx.Err(); err != nil {
		return err
	}
	return <-errs
}

// insist repeats a check that fails: a store times out easily while all of its clients connect at the same moment.
func insist(check check, n uint32) error {
	const tries = 5
	for i := 1; ; i++ {
		err := check(n)
		if err == nil {
			return nil
		}
		if i == tries {
			return fmt.Errorf("filling: failed %d times: %w", tries, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
