// Package onclose tells when a connection is closed, and hides nothing else of it.
package onclose

import (
	"crypto/tls"
	"net"
	"runtime"
	"sync"
)

// Wrap returns a connection that calls f once, before it is closed; or when nobody has it any more, since a connection that was
// forgotten is closed by the garbage collector. f must not lead back to what Wrap returns.
//
// Whoever has a connection looks for methods that not all of them have, above all CloseWrite: a proxy ends both directions
// without it. Those of the connections that servers have stay as they are.
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

// told has f called when a connection is garbage.
func told[T any](c *T, f func()) *T {
	runtime.AddCleanup(c, func(f func()) { go f() }, f) // it may take its time, and others wait to be cleaned up
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
