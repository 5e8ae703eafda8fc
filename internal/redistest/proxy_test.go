package redistest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// dial opens a connection through a proxy.
func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// send sends a command and waits for the reply, for as long as wait if it isn't 0.
func send(t *testing.T, conn net.Conn, wait time.Duration, args ...string) (any, error) {
	t.Helper()
	var deadline time.Time
	if wait > 0 {
		deadline = time.Now().Add(wait)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	replies, err := exchange(conn, nil, [][]string{args})
	if err != nil {
		return nil, err
	}
	return replies[0], nil
}

// count is what the counter n stands at, asked around the proxy.
func count(t *testing.T, s *Server) any {
	t.Helper()
	return must(t, s, "GET", "n")
}

func TestProxyLosesReplies(t *testing.T) {
	s := New(t, Options{})
	p := NewProxy(t, s.Addr)
	conn := dial(t, p)
	if got, err := send(t, conn, 0, "INCR", "n"); err != nil || got != int64(1) {
		t.Fatalf("without faults: got %v, %v", got, err)
	}

	if err := p.DropReplies(); err != nil {
		t.Fatal(err)
	}
	if got, err := send(t, conn, 200*time.Millisecond, "INCR", "n"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("replies dropped: got %v, %v", got, err)
	}
	soon(t, func(context.Context) error {
		if got := count(t, s); got != "2" {
			return errors.New("the command hasn't run")
		}
		return nil
	})

	p.Heal()
	if got, err := send(t, dial(t, p), 0, "INCR", "n"); err != nil || got != int64(3) {
		t.Errorf("healed: got %v, %v", got, err)
	}
}

func TestProxyLosesCommands(t *testing.T) {
	s := New(t, Options{})
	p := NewProxy(t, s.Addr)
	must(t, s, "SET", "n", "1")
	if err := p.DropCommands(); err != nil {
		t.Fatal(err)
	}
	if got, err := send(t, dial(t, p), 200*time.Millisecond, "INCR", "n"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("commands dropped: got %v, %v", got, err)
	}
	if got := count(t, s); got != "1" {
		t.Errorf("the command has run: %v", got)
	}
}

func TestProxyResets(t *testing.T) {
	s := New(t, Options{})
	p := NewProxy(t, s.Addr)
	must(t, s, "SET", "n", "1")
	old := dial(t, p)
	if _, err := send(t, old, 0, "PING"); err != nil {
		t.Fatal(err)
	}

	if err := p.ResetCommands(); err != nil {
		t.Fatal(err)
	}
	if _, err := send(t, old, 0, "INCR", "n"); !errors.Is(err, io.EOF) {
		t.Errorf("an older connection: got %v", err)
	}
	if _, err := send(t, dial(t, p), 0, "INCR", "n"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a new connection: got %v", err)
	}
	if got := count(t, s); got != "1" {
		t.Errorf("a command has run: %v", got)
	}

	p.Heal()
	if err := p.ResetReplies(); err != nil {
		t.Fatal(err)
	}
	if _, err := send(t, dial(t, p), 0, "INCR", "n"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a reply: got %v", err)
	}
	if got := count(t, s); got != "2" {
		t.Errorf("the command hasn't run: %v", got)
	}
}

func TestProxySlows(t *testing.T) {
	s := New(t, Options{})
	p := NewProxy(t, s.Addr)
	conn := dial(t, p)
	if err := errors.Join(p.Delay(50*time.Millisecond, 0), p.Throttle(1)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if got, err := send(t, conn, 0, "PING"); err != nil || got != "PONG" {
		t.Errorf("got %v, %v", got, err)
	}
	if d := time.Since(begin); d < 50*time.Millisecond {
		t.Errorf("the reply came after %v", d)
	}
}

func TestProxyDown(t *testing.T) {
	s := New(t, Options{})
	p := NewProxy(t, s.Addr)
	conn := dial(t, p)
	if _, err := send(t, conn, 0, "PING"); err != nil {
		t.Fatal(err)
	}
	p.Down()
	if got, err := send(t, conn, 0, "PING"); err == nil {
		t.Errorf("down: got %v", got)
	}
	if conn, err := net.Dial("tcp", p.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("down: got %v, %v", conn, err)
	}
	if err := p.Up(); err != nil {
		t.Fatal(err)
	}
	if got, err := send(t, dial(t, p), 0, "PING"); err != nil {
		t.Errorf("up: got %v, %v", got, err)
	}
}
