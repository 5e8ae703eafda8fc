package redistest

import (
	"context"
	"fmt"
	"time"
)

// TB has the methods of testing.TB that this package needs, so that programs for measurements can implement it.
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

// keep closes a server when the test ends. If the test failed, it also shows the server's log.
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

// patience is how long to wait for things that should take a second or two. It is long enough for a busy machine.
const patience = time.Minute

// Until calls check repeatedly until it returns nil. If ctx ends first, Until returns the last error of check.
func Until(ctx context.Context, check func(context.Context) error) error {
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // ignore the error of a check that was cut short by the end of ctx
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
