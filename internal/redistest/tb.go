package redistest

import (
	"context"
	"fmt"
	"time"
)

// TB is what this package needs of a test, or of a program that measures.
type TB interface {
	Helper()
	Fatal(args ...any)
	Error(args ...any)
	Logf(format string, args ...any)
	Failed() bool
	Cleanup(f func())
}

// check fails the test if there is an error.
func check(tb TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// keep closes a server when the test ends, and shows the server's log if the test failed.
func keep(tb TB, s *Server) {
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("redis-server on %s:\n%s", s.Addr, s.Log())
		}
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
}

// patience is how long to wait for what should take a second or two. It ends what hangs, but tolerates a busy machine.
const patience = time.Minute

// Until calls check again and again until check returns nil. If ctx ends first, it returns the last error of check.
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
