package redisstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"

	"github.com/weirhq/weir/internal/patient"
)

// dial connects within the dialer's timeout. It counts the node's own time: see package patient.
func dial(caller context.Context, network, addr string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
	// This isn't derived from the caller's context, whose deadline counts wall time.
	ctx, cancel := patient.WithTimeout(context.Background(), d.Timeout)
	defer cancel()
	defer context.AfterFunc(caller, cancel)()
	untimed := *d
	untimed.Timeout = 0
	c, err := untimed.DialContext(ctx, network, addr)
	if err == nil {
		c, err = secure(ctx, &patient.Conn{Conn: c}, addr, t)
	}
	switch {
	case err == nil:
		return &boundedConn{Conn: c}, nil
	case caller.Err() != nil:
		err = caller.Err()
	case context.Cause(ctx) == os.ErrDeadlineExceeded:
		err = fmt.Errorf("dial %s %s: %w", network, addr, os.ErrDeadlineExceeded)
	}
	return nil, err
}

// secure starts TLS on a connection if there is a configuration. If that fails, it closes the connection.
func secure(ctx context.Context, c net.Conn, addr string, t *tls.Config) (net.Conn, error) {
	if t == nil {
		return c, nil
	}
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
