package gateway_test

import (
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/server/internal/edge/gateway"
)

// door listens, and answers a byte to each connection that it lets in.
func door(t *testing.T, d *gateway.Door) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.Listener = l
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := d.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = c.Write([]byte("x"))
				_, _ = io.Copy(io.Discard, c) // until the client closes it
				_ = c.Close()
				_ = c.Close() // counts once
			}()
		}
	}()
	t.Cleanup(func() {
		_ = d.Close()
		<-done
	})
	return l.Addr().String()
}

// let reports whether a connection is let in, and returns it.
func let(t *testing.T, addr string) (net.Conn, bool) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, false // it was closed that soon
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	_, err = io.ReadFull(c, make([]byte, 1))
	return c, err == nil
}

// An address may have so many connections open, and another one when one is closed.
func TestConnectionsPerIP(t *testing.T) {
	d := &gateway.Door{PerIP: 3}
	addr := door(t, d)
	var open []net.Conn
	for i := range 10 {
		c, in := let(t, addr)
		if in != (i < 3) {
			t.Fatalf("connection %d: %v", i, in)
		}
		if in {
			open = append(open, c)
		}
	}
	if got := d.TooMany.Load(); got != 7 {
		t.Errorf("%d were too many", got)
	}
	for range 3 { // again and again, so that none is counted for ever
		_ = open[0].Close()
		for {
			c, in := let(t, addr) // once its end has been seen
			if in {
				open = append(open[1:], c)
				break
			}
		}
		if _, in := let(t, addr); in {
			t.Fatal("a fourth")
		}
	}
}

// Trusted proxies carry many clients: neither bound is for them.
func TestTrustedProxiesAreLetIn(t *testing.T) {
	d := &gateway.Door{PerIP: 1, Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Unwelcome: func(netip.Addr) bool { return true }}
	addr := door(t, d)
	for i := range 5 {
		if _, in := let(t, addr); !in {
			t.Fatalf("connection %d", i)
		}
	}
}

func TestUnwelcome(t *testing.T) {
	var unwelcome atomic.Bool
	d := &gateway.Door{Unwelcome: func(a netip.Addr) bool { return unwelcome.Load() && a == netip.MustParseAddr("127.0.0.1") }}
	addr := door(t, d)
	for _, want := range []bool{false, true, false} {
		unwelcome.Store(want)
		if _, in := let(t, addr); in == want {
			t.Errorf("unwelcome %v: let in %v", want, in)
		}
	}
	if got := d.TurnedAway.Load(); got != 1 {
		t.Errorf("%d were turned away", got)
	}
}
