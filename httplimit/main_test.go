package httplimit_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func compile(t testing.TB, doc weir.Rules) *weir.RuleSet {
	t.Helper()
	rs, err := weir.Compile(doc)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func limiter(t testing.TB, doc weir.Rules) *weir.Limiter {
	t.Helper()
	return weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, doc), weir.Options{})
}

func rules(rs ...weir.Rule) weir.Rules { return weir.Rules{Rules: rs} }

func per(n int64, w time.Duration) []weir.Limit { return []weir.Limit{{Count: n, Window: w}} }

// ok is a handler that responds "ok".
var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })

// serve runs a handler on a real server and returns its address and a client that trusts it.
func serve(t testing.TB, h http.Handler) (*httptest.Server, *http.Client) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s, s.Client()
}

// get sends a request with headers, given as names and values, and returns the answer without its body.
func get(t testing.TB, c *http.Client, url string, headers ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp
}

// statusOf is like get, for goroutines that must not call t.Fatal. It returns 0 if the request fails.
func statusOf(c *http.Client, url string) int {
	resp, err := c.Get(url)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// raw sends bytes unchanged and reads one response.
func raw(t testing.TB, conn net.Conn, request string) (*http.Response, string) {
	t.Helper()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// pipes is a network in memory, for servers in a synctest bubble: reads that
// wait on a socket would keep its clock from moving.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

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

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80} }

func (p *pipes) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- from{there, &net.TCPAddr{IP: net.IPv4(198, 51, 100, 7), Port: 50000}}:
		return here, nil
	case <-p.closed:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) dial(t testing.TB) net.Conn {
	t.Helper()
	c, err := p.DialContext(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// client is an HTTP client of this network.
func (p *pipes) client(t testing.TB) *http.Client {
	tr := &http.Transport{DialContext: p.DialContext}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// from is a connection with a remote address.
type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }

// servePipes runs a handler on a network in memory.
func servePipes(t testing.TB, h http.Handler) *pipes {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	s := &http.Server{Handler: h}
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(p) })
	t.Cleanup(func() {
		_ = s.Close()
		wg.Wait()
	})
	return p
}

// outage is a store that can't be reached for some rules, like a store that has lost a shard.
type outage struct {
	*memstore.Store
	fails []string
}

var errGone = errors.New("shard gone")

func (s *outage) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	var healthy []counter.Charge
	var at []int
	for i, c := range charges {
		if slices.Contains(s.fails, c.Policy.Rule) {
			results[i] = counter.Result{Err: errGone}
			continue
		}
		healthy, at = append(healthy, c), append(at, i)
	}
	out := make([]counter.Result, len(healthy))
	s.Store.Take(ctx, healthy, out)
	for j, i := range at {
		results[i] = out[j]
	}
}

// wrap returns a handler behind the middleware.
func wrap(l *weir.Limiter, opts httplimit.Options, h http.Handler) http.Handler {
	return httplimit.New(l, opts).Wrap(h)
}

func atoi(t testing.TB, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
