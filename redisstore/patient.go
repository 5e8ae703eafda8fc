package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

// steps is how many ticks a time is cut into that is measured in the node's own time.
const steps = 8

// after calls f when d has passed in the node's own time, which stands still while the node is
// late: a tick counts once however late it comes, and first lets every goroutine run that is ready.
// So by the end, the goroutine that reads replies has had several turns, and Redis isn't taken for
// lost because of a reply that had come and wasn't read.
func after(d time.Duration, f func()) (stop func()) {
	var stopped atomic.Bool
	left := steps
	var tick func()
	tick = func() {
		runtime.Gosched()
		left--
		switch {
		case stopped.Load():
		case left == 0:
			f()
		default:
			time.AfterFunc(d/steps, tick)
		}
	}
	time.AfterFunc(d/steps, tick)
	return func() { stopped.Store(true) }
}

// patient is a context that ends when d has passed in the node's own time.
func patient(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	stop := after(d, func() { cancel(os.ErrDeadlineExceeded) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// dial connects within the dialer's timeout, in the node's own time.
func dial(caller context.Context, network, addr string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
	// Not the caller's own context: its deadline would count in wall time.
	ctx, cancel := patient(context.Background(), d.Timeout)
	defer cancel()
	defer context.AfterFunc(caller, cancel)()
	untimed := *d
	untimed.Timeout = 0
	c, err := untimed.DialContext(ctx, network, addr)
	if err == nil {
		c = &patientConn{Conn: c}
	}
	if err == nil && t != nil {
		c, err = secure(ctx, c, addr, t)
	}
	if err == nil {
		c = &boundedConn{Conn: c}
	}
	switch {
	case err == nil:
	case caller.Err() != nil:
		err = caller.Err()
	case context.Cause(ctx) == os.ErrDeadlineExceeded:
		err = fmt.Errorf("dial %s %s: %w", network, addr, os.ErrDeadlineExceeded)
	}
	return c, err
}

// secure makes a TLS connection of one, which it closes if it can't.
func secure(ctx context.Context, c net.Conn, addr string, t *tls.Config) (net.Conn, error) {
	if t.ServerName == "" {
		t = t.Clone()
		t.ServerName, _, _ = net.SplitHostPort(addr)
	}
	secured := tls.Client(c, t)
	if err := secured.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return secured, nil
}

// patientConn is a connection whose deadlines are in the node's own time: when a part of the time
// is over it looks again whether there is something to read, after all goroutines that were ready
// have run.
type patientConn struct {
	net.Conn
	part atomic.Int64 // of the time until the deadline, ns; 0 without one
	left atomic.Int32 // parts
}

// SetDeadline replaces the deadline.
func (c *patientConn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.part.Store(0)
		return c.Conn.SetDeadline(t)
	}
	now := time.Now()
	part := max(t.Sub(now)/steps, 1)
	c.part.Store(int64(part))
	c.left.Store(steps)
	return c.Conn.SetDeadline(now.Add(part))
}

// again reports whether an error means no more than that a part of the time is over.
func (c *patientConn) again(err error) bool {
	part := c.part.Load()
	if err == nil || part == 0 || !errors.Is(err, os.ErrDeadlineExceeded) || c.left.Add(-1) <= 0 {
		return false
	}
	runtime.Gosched()
	return c.Conn.SetDeadline(time.Now().Add(time.Duration(part))) == nil
}

func (c *patientConn) Read(b []byte) (n int, err error) {
	for {
		if n, err = c.Conn.Read(b); n > 0 || !c.again(err) {
			return n, err
		}
	}
}

func (c *patientConn) Write(b []byte) (n int, err error) {
	for {
		wrote, err := c.Conn.Write(b[n:])
		if n += wrote; !c.again(err) {
			return n, err
		}
	}
}
