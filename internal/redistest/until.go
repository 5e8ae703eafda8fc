package redistest

import (
	"context"
	"fmt"
	"time"
)

// patience is how long to wait for what should take a second or two. It ends what hangs, but
// tolerates a busy machine.
const patience = time.Minute

// Until calls check again and again until check returns nil. If ctx ends first, it returns the last
// error of check.
func Until(ctx context.Context, check func(context.Context) error) error {
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // an error because ctx has ended says nothing
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
