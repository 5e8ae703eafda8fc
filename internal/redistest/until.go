package redistest

import (
	"context"
	"fmt"
	"time"
)

// patience is for what should take a second or two: it ends what hangs and
// bears a machine that is busy.
const patience = time.Minute

// Until asks again and again until check returns nil. When ctx ends first, it returns
// what check said last.
func Until(ctx context.Context, check func(context.Context) error) error {
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // what a check says because ctx ended tells nothing
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
