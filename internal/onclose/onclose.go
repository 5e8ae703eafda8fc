// Package onclose calls a function when a connection closes.
package onclose

import (
	"crypto/tls"
	"net"
	"runtime"
	"sync"
)

// Wrap returns a connection that calls f once: before the connection is closed, or when it is garbage-collected, since
// the garbage collector closes forgotten connections. f must not reference the result.
//
// The result has the same methods as the connections that servers use, because callers look for these methods. For
// example, without CloseWrite, a proxy ends both directions at once.
func Wrap(c net.Conn, f func()) net.Conn {
	f = sync.OnceFunc(f)
	switch c := c.(type) {
	case *net.TCPConn:
		return told(&tcpConn{c, f}, f)
	case *tls.Conn:
		return told(&tlsConn{c, f}, f)
	case *net.UnixConn:
		return told(&unixConn{c, f}, f)
	case halfCloser:
		return told(&halfConn{c, f}, f)
	}
	return told(&conn{c, f}, f)
}

// told arranges that f is called when c is garbage-collected.
func told[T any](c *T, f func()) *T {
	// Call f in a goroutine, because f may be slow, and other cleanups would have to wait.
	runtime.AddCleanup(c, func(f func()) { go f() }, f)
	return c
}

type halfCloser interface {
	net.Conn
	CloseWrite() error
}

type (
	tcpConn struct {
		*net.TCPConn
		closed func()
	}
	tlsConn struct {
		*tls.Conn
		closed func()
	}
	unixConn struct {
		*net.UnixConn
		closed func()
	}
	halfConn struct {
		halfCloser
		closed func()
	}
	conn struct {
		net.Conn
		closed func()
	}
)

func (c *tcpConn) Close() error  { c.closed(); return c.TCPConn.Close() }
func (c *tlsConn) Close() error  { c.closed(); return c.Conn.Close() }
func (c *unixConn) Close() error { c.closed(); return c.UnixConn.Close() }
func (c *halfConn) Close() error { c.closed(); return c.halfCloser.Close() }
func (c *conn) Close() error     { c.closed(); return c.Conn.Close() }
