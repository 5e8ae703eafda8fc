package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"

	"github.com/go-chi/httprate"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/rawhttp"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/bench/internal/workload"
	"github.com/weirhq/weir/server/internal/load"
)

// httpWorkload is a handler that writes two bytes, bare and behind middleware, served by net/http on loopback: it shows
// what limiting costs a whole request. There are as many clients as keys, all known beforehand, so that limiters look for
// their counters where they usually are: not in the nearest cache.
const httpWorkload = "http"

const (
	httpBare     = "bare handler"
	httpBoth     = "Weir, both header dialects"
	httpSilent   = "Weir, headers off"
	httpHTTPRate = "go-chi/httprate 0.16.1, its three headers"
)

// middleware makes what wraps a handler.
type middleware func(l limit, keys int) (func(http.Handler) http.Handler, error)

func httpContenders(keys int) []contender {
	return []contender{
		{httpBare, floor, serving(keys, func(limit, int) (func(http.Handler) http.Handler, error) {
			return func(h http.Handler) http.Handler { return h }, nil
		})},
		{httpBoth, weirs, serving(keys, weirMiddleware(httplimit.Answers{}))},
		{httpSilent, weirs, serving(keys, weirMiddleware(httplimit.Answers{Dialects: []httplimit.Dialect{}}))},
		{httpHTTPRate, rival, serving(keys, func(l limit, _ int) (func(http.Handler) http.Handler, error) {
			key := func(r *http.Request) (string, error) { return r.Header.Get("X-API-Key"), nil }
			return httprate.LimitBy(int(l.tokens), l.window(), key), nil
		})},
	}
}

func weirMiddleware(answers httplimit.Answers) middleware {
	return func(l limit, keys int) (func(http.Handler) http.Handler, error) {
		rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "bench", Limits: []weir.Limit{weirLimit(l)}}}})
		if err != nil {
			return nil, err
		}
		limiter := weir.NewLimiter(newStore(keys), rules, weir.Options{})
		return httplimit.New(limiter, httplimit.Options{Answers: answers}).Wrap, nil
	}
}

func httpGroup(c *config) *group {
	var picked []contender
	for _, o := range httpContenders(c.Keys) {
		if c.Contenders.MatchString(o.name) {
			picked = append(picked, o)
		}
	}
	// The contenders fill themselves, since a million requests take too long. More rounds than elsewhere, since what the
	// cores share with the kernel varies from round to round.
	return &group{[]string{httpWorkload}, 3 * c.Rounds, wideLimit, false, 1, entries(picked, 1, c.plan(c.Keys, load.Uniform))}
}

// httpTargets promise requests per second, which are compared as time per request.
func httpTargets(r *results) []report.Target {
	t := r.table(httpWorkload)
	bare, both := t.Row(httpBare), t.Row(httpBoth)
	dialects, silent := both.Ratio(bare, compare.Nanoseconds), t.Row(httpSilent).Ratio(bare, compare.Nanoseconds)
	rate := both.Ratio(t.Row(httpHTTPRate), compare.Nanoseconds)
	speed := func(s report.Spread) string { return fmt.Sprintf("%.2f× the requests", 1/s.Median) }
	return []report.Target{
		ratioTarget("http: both dialects / bare (0.8× the requests)", 1.25, dialects, speed(dialects)),
		ratioTarget("http: headers off / bare (0.9× the requests)", 1.11, silent, speed(silent)),
		ratioTarget("http: both dialects / httprate", 1, rate, speed(rate)),
	}
}

// printHTTP shows the workload in requests a second.
func printHTTP(w io.Writer, t *compare.Table, allocations compare.Column) {
	bare := t.Row(httpBare)
	t.Print(w, fmt.Sprintf(": a handler that writes two bytes, on loopback with its clients, %d connections", runtime.GOMAXPROCS(0)*httpDepth),
		compare.Median("requests/s", compare.PerSecond, 0), compare.Range("range", compare.PerSecond, 0),
		compare.Ratio("× bare", bare, compare.PerSecond),
		compare.Median("CPU µs", compare.CPU, 1), compare.Ratio("× bare", bare, compare.CPU), allocations)
}

// serving opens a server of its own for a middleware. A check is a request.
func serving(keys int, wrap middleware) func(limit, int) (instance, error) {
	return func(l limit, _ int) (instance, error) {
		mw, err := wrap(l, keys)
		if err != nil {
			return instance{}, err
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return instance{}, err
		}
		answer := []byte("ok")
		handler := mw(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) }))
		fill(instance{worker: func() check { return direct(handler) }}, workload.MakeKeys(keys), keys, true)
		srv := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}
		var wg sync.WaitGroup
		wg.Go(func() { _ = srv.Serve(ln) })
		var mu sync.Mutex // guards clients: workers begin at the same time
		var clients []*httpClient
		return instance{
			worker: func() check {
				c := newHTTPClient(ln.Addr().String())
				mu.Lock()
				defer mu.Unlock()
				clients = append(clients, c)
				return c.check
			},
			close: func() {
				for _, c := range clients {
					c.close()
				}
				_ = srv.Close()
				wg.Wait()
			},
		}, nil
	}
}

// direct calls a handler without a server.
func direct(h http.Handler) check {
	w := &discard{header: http.Header{}}
	r := httptest.NewRequest(http.MethodGet, "/v1/orders/17", nil)
	return func(key string) bool {
		clear(w.header)
		r.Header["X-Api-Key"] = []string{key}
		h.ServeHTTP(w, r)
		return true
	}
}

// discard is a ResponseWriter that keeps nothing.
type discard struct{ header http.Header }

func (w *discard) Header() http.Header         { return w.header }
func (w *discard) Write(b []byte) (int, error) { return len(b), nil }
func (w *discard) WriteHeader(int)             {}

// httpDepth is how many connections a goroutine keeps busy.
const httpDepth = 16

// httpClient keeps one goroutine's connections busy: each has a request under way.
type httpClient struct {
	_     padding
	conns [httpDepth]httpConn
	next  int
	_     padding
}

type httpConn struct {
	rawhttp.Conn
	request []byte
	key     []byte // in the request
	pending bool
}

func newHTTPClient(addr string) *httpClient {
	c := &httpClient{}
	for i := range c.conns {
		conn := &c.conns[i]
		conn.Addr = addr
		conn.request = fmt.Appendf(nil, "GET /v1/orders/17 HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\nX-API-Key: %s\r\n\r\n", workload.MakeKeys(1).At(0))
		at := bytes.Index(conn.request, []byte(workload.KeyPrefix))
		conn.key = conn.request[at : at+workload.KeyLength]
	}
	return c
}

// check sends a request on the next connection, and reports whether the connection's request before was allowed.
func (c *httpClient) check(key string) bool {
	conn := &c.conns[c.next]
	c.next = (c.next + 1) % httpDepth
	allowed := true
	if conn.pending {
		a, err := conn.Receive()
		allowed = err == nil && a.Status == http.StatusOK
	}
	copy(conn.key, key)
	conn.pending = conn.Send(conn.request) == nil
	return allowed && conn.pending
}

func (c *httpClient) close() {
	for i := range c.conns {
		c.conns[i].Close()
	}
}
