// Package patient measures timeouts in the node's own time, which stands still while the node is held up. A timeout is
// split into parts, and each part counts once, however late its timer fires. Before a part counts, every goroutine that
// is ready gets to run. So when the timeout ends, a goroutine that reads replies has had several chances to run, and a
// server whose reply has arrived isn't reported as lost.
package patient

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

// Parts is how many parts a timeout has. With more parts, the node may be held up for longer before a timeout ends
// wrongly, but timers cost more.
const Parts = 8

// Every calls tick after each d until tick returns false or the caller calls stop.
func Every(d time.Duration, tick func() bool) (stop func()) {
	var stopped atomic.Bool
	var next func()
	next = func() {
		runtime.Gosched()
		if !stopped.Load() && tick() {
			time.AfterFunc(d, next)
		}
	}
	first := time.AfterFunc(d, next)
	return func() {
		stopped.Store(true)
		first.Stop()
	}
}

// WithTimeout is like [context.WithTimeout], but in the node's own time. When the timeout ends, the context's cause is
// [os.ErrDeadlineExceeded].
func WithTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	left := Parts
	stop := Every(d/Parts, func() bool {
		if left--; left == 0 {
			cancel(os.ErrDeadlineExceeded)
		}
		return left > 0
	})
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Conn is a connection whose deadlines are in the node's own time. After each part of a timeout, it tries again to read
// or write.
type Conn struct {
	net.Conn
	part atomic.Int64 // how long a part of the timeout is, in ns; 0 without a deadline
	left atomic.Int32 // parts until the deadline
}

// SetDeadline replaces the deadline.
func (c *Conn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.part.Store(0)
		return c.Conn.SetDeadline(t)
	}
	now := time.Now()
	part := max(t.Sub(now)/Parts, 1)
	c.part.Store(int64(part))
	c.left.Store(Parts)
	return c.Conn.SetDeadline(now.Add(part))
}

// again reports whether an error only means that one part of the timeout has passed. If so, it sets the deadline of the
// next part.
func (c *Conn) again(err error) bool {
	part := c.part.Load()
	if err == nil || part == 0 || !errors.Is(err, os.ErrDeadlineExceeded) || c.left.Add(-1) <= 0 {
		return false
	}
	runtime.Gosched()
	return c.Conn.SetDeadline(time.Now().Add(time.Duration(part))) == nil
}

func (c *Conn) Read(b []byte) (n int, err error) {
	for {
		if n, err = c.Conn.Read(b); n > 0 || !c.again(err) {
			return n, err
		}
	}
}

func (c *Conn) Write(b []byte) (n int, err error) {
	for {
		wrote, err := c.Conn.Write(b[n:])
		if n += wrote; !c.again(err) {
			return n, err
		}
	}
}
