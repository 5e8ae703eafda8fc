package load

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// target turns a function into a target.
type target func(ctx context.Context, n uint32) Answer

func (t target) String() string                            { return "a function" }
func (t target) Sender() Sender                            { return t }
func (t target) Send(ctx context.Context, n uint32) Answer { return t(ctx, n) }

// pipes is a network in memory, so that virtual time can wait for it.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serve starts a server on a network in memory, and returns a target for it. A test sets only the options that it is about.
func serve(t *testing.T, h http.HandlerFunc, o HTTPOptions) *HTTP {
	t.Helper()
	network := newPipes()
	server := &httptest.Server{Listener: network, Config: &http.Server{Handler: h}}
	server.Start()
	t.Cleanup(server.Close)
	if o.URL == nil {
		o.URL = &url.URL{Scheme: "http", Host: "test", Path: "/"}
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	o.Keys = max(o.Keys, 1)
	o.Connections = 64
	target, err := NewHTTP(o)
	if err != nil {
		t.Fatal(err)
	}
	target.transport.DialContext = network.dial
	t.Cleanup(target.Close)
	return target
}

// virtual returns a plan for a bubble of virtual time.
func virtual(p Plan) Plan {
	p.Keys = max(p.Keys, 1)
	p.Workers = max(p.Workers, 1)
	p.nap = time.Sleep
	return p
}

func mustRun(t *testing.T, p Plan, to Target) *Report {
	t.Helper()
	r, err := Run(t.Context(), virtual(p), to, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// near reports whether a time from a histogram equals the wanted one, to the histogram's three digits.
func near(got, want time.Duration) bool { return (got - want).Abs() <= want/500 }
