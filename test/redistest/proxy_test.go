package redistest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// dial opens a connection through a proxy.
func dial(t *testing.T, p *redistest.Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// send sends a command and waits for the reply. Zero means to wait without a limit.
func send(t *testing.T, conn net.Conn, wait time.Duration, args ...string) (string, error) {
	t.Helper()
	var deadline time.Time
	if wait > 0 {
		deadline = time.Now().Add(wait)
	}
	if err := conn.SetDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	return ask(conn, args...)
}

// ask sends a command and returns the reply: a text, or a number's digits. An error reply is also returned as text.
func ask(conn net.Conn, args ...string) (string, error) {
	if _, err := fmt.Fprintf(conn, "%s\r\n", strings.Join(args, " ")); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	reply, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	if reply[0] == '$' { // followed by the text's length
		reply, err = r.ReadString('\n')
		return strings.TrimSpace(reply), err
	}
	return strings.TrimSpace(reply[1:]), nil
}

// count reads the counter n directly, not through the proxy.
func count(t *testing.T, s *redistest.Server) any {
	t.Helper()
	return must(t, s, "GET", "n")
}

func TestProxyLosesReplies(t *testing.T) {
	s := redistest.New(t, redistest.Options{})
	p := redistest.NewProxy(t, s.Addr)
	conn := dial(t, p)
	if got, err := send(t, conn, 0, "INCR", "n"); err != nil || got != "1" {
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
	if got, err := send(t, dial(t, p), 0, "INCR", "n"); err != nil || got != "3" {
		t.Errorf("healed: got %v, %v", got, err)
	}
}

func TestProxyLosesCommands(t *testing.T) {
	s := redistest.New(t, redistest.Options{})
	p := redistest.NewProxy(t, s.Addr)
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
	s := redistest.New(t, redistest.Options{})
	p := redistest.NewProxy(t, s.Addr)
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
	s := redistest.New(t, redistest.Options{})
	p := redistest.NewProxy(t, s.Addr)
	conn := dial(t, p)
	if err := errors.Join(p.Delay(50*time.Millisecond), p.Throttle(1)); err != nil {
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
	s := redistest.New(t, redistest.Options{})
	p := redistest.NewProxy(t, s.Addr)
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

// Replies that are delayed by an hour arrive in order as soon as the fault ends. A proxy that delays replies can be
// closed.
func TestProxyHolds(t *testing.T) {
	s := redistest.New(t, redistest.Options{})
	p := redistest.NewProxy(t, s.Addr)
	conn := dial(t, p)
	if err := p.Delay(time.Hour); err != nil {
		t.Fatal(err)
	}
	incr := func(want int) {
		t.Helper()
		if _, err := fmt.Fprint(conn, "INCR n\r\n"); err != nil {
			t.Fatal(err)
		}
		soon(t, func(context.Context) error {
			if got := count(t, s); got != fmt.Sprint(want) {
				return fmt.Errorf("the counter is at %v, want %d", got, want)
			}
			return nil
		})
	}
	const n = 50
	for i := range n { // one by one, so that each reply is delayed separately
		incr(i + 1)
	}
	p.Heal()
	r := bufio.NewReader(conn)
	for want := range n {
		if line, err := r.ReadString('\n'); err != nil || line != fmt.Sprintf(":%d\r\n", want+1) {
			t.Fatalf("got %q, %v, want %d", line, err, want+1)
		}
	}

	// If another fault starts in the meantime, the delayed replies are lost.
	if err := p.Delay(time.Hour); err != nil {
		t.Fatal(err)
	}
	incr(n + 1)
	if err := p.DropReplies(); err != nil {
		t.Fatal(err)
	}
	p.Heal()
	if line, err := r.ReadString('\n'); !errors.Is(err, io.EOF) {
		t.Errorf("healed: got %q, %v, want the end of the connection", line, err)
	}

	if err := p.Delay(time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprint(dial(t, p), "PING\r\n"); err != nil {
		t.Fatal(err)
	}
}
