package onclose

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns both ends of a connection.
func pair(t *testing.T, network, address string) (here, there net.Conn) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	here, err = net.Dial(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if there, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close(); there.Close() })
	return here, there
}

// halfPipe is a foreign connection type that can be closed in one direction.
type halfPipe struct {
	net.Conn
	closed bool
}

func (p *halfPipe) CloseWrite() error { p.closed = true; return nil }

// A wrapped connection implements exactly the optional interfaces of the original one.
func TestWrappedConnectionsKeepTheirInterfaces(t *testing.T) {
	tcp, _ := pair(t, "tcp", "127.0.0.1:0")
	unix, _ := pair(t, "unix", filepath.Join(t.TempDir(), "s"))
	pipe, other := net.Pipe()
	defer other.Close()
	for name, c := range map[string]net.Conn{
		"TCP": tcp, "Unix": unix, "TLS": tls.Server(tcp, &tls.Config{}), "half": &halfPipe{Conn: pipe}, "pipe": pipe,
	} {
		w := Wrap(c, func() {})
		for what, can := range map[string]func(any) bool{
			"CloseWrite":      func(c any) bool { _, ok := c.(interface{ CloseWrite() error }); return ok },
			"ReadFrom":        func(c any) bool { _, ok := c.(io.ReaderFrom); return ok },
			"WriteTo":         func(c any) bool { _, ok := c.(io.WriterTo); return ok },
			"SyscallConn":     func(c any) bool { _, ok := c.(syscall.Conn); return ok },
			"ConnectionState": func(c any) bool { _, ok := c.(interface{ ConnectionState() tls.ConnectionState }); return ok },
		} {
			if can(c) != can(w) {
				t.Errorf("%s: %s is there: %t, and was: %t", name, what, can(w), can(c))
			}
		}
	}
	half := &halfPipe{Conn: pipe}
	if err := Wrap(half, func() {}).(interface{ CloseWrite() error }).CloseWrite(); err != nil || !half.closed {
		t.Errorf("CloseWrite: %v, reached it: %t", err, half.closed)
	}
}

// The function is called once, before the other end sees that the connection closes.
func TestCalledOnce(t *testing.T) {
	here, there := pair(t, "tcp", "127.0.0.1:0")
	var mu sync.Mutex
	told := 0
	w := Wrap(here, func() {
		mu.Lock()
		defer mu.Unlock()
		told++
		_, _ = io.WriteString(here, "bye") // the connection is still open
	})
	w.Close()
	w.Close()
	got, err := io.ReadAll(there)
	mu.Lock()
	defer mu.Unlock()
	if told != 1 || err != nil || !bytes.Equal(got, []byte("bye")) {
		t.Errorf("told %d times; the other end got %q, %v", told, got, err)
	}
}

// If a connection is garbage-collected, it counts as closed.
func TestGarbageCollectedConnections(t *testing.T) {
	told := make(chan struct{})
	func() {
		here, _ := pair(t, "tcp", "127.0.0.1:0")
		Wrap(here, func() { close(told) })
	}()
	for deadline := time.Now().Add(30 * time.Second); ; {
		runtime.GC()
		select {
		case <-told:
			return
		default:
			if time.Now().After(deadline) {
				t.Fatal("a forgotten connection was never told of")
			}
		}
	}
}
