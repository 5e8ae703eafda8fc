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

// door starts a listener behind d, which sends one byte on each connection that it lets in. It returns its address.
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
				_, _ = io.Copy(io.Discard, c) // until the client closes the connection
				_ = c.Close()
				_ = c.Close() // closing twice must count once
			}()
		}
	}()
	t.Cleanup(func() {
		_ = d.Close()
		<-done
	})
	return l.Addr().String()
}

// let connects, and reports whether the connection is let in.
func let(t *testing.T, addr string) (net.Conn, bool) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, false // the listener has closed it already
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	_, err = io.ReadFull(c, make([]byte, 1))
	return c, err == nil
}

// An address may have PerIP connections open. When it closes one, it may open another.
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
		t.Errorf("%d connections were refused, want 7", got)
	}
	for range 3 { // several times, to show that each closed connection is subtracted
		_ = open[0].Close()
		for {
			c, in := let(t, addr) // succeeds once the listener has noticed the close
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

// Connections of trusted proxies are exempt from both checks, because they carry the requests of many clients.
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
