package main

import (
	"bytes"
	"errors"
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
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// httpWorkload is a handler that writes two bytes, bare and behind middleware,
// served by net/http on loopback: what limiting costs a whole request. Clients are as many as keys, all
// known beforehand, so that limiters look for their counters where they are in life: not in the nearest cache.
const httpWorkload = "http"

const (
	httpBare     = "bare handler"
	httpBoth     = "Weir, both header dialects"
	httpSilent   = "Weir, headers off"
	httpHTTPRate = "go-chi/httprate 0.16.1, its three headers"
)

// middleware prepares what stands in front of a handler.
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

func httpStage(c *config) *stage {
	var picked []contender
	for _, o := range httpContenders(c.keys) {
		if c.contenders.MatchString(o.name) {
			picked = append(picked, o)
		}
	}
	// Filled by the contenders themselves: a million requests take too long.
	return &stage{[]string{httpWorkload}, c.noisyRounds(), wideLimit, false, 1, entries(picked, 1, workload.Uniform(c.keys))}
}

// httpTargets promise requests per second, which are held against each other as time per request.
func httpTargets(r *results) []report.Target {
	t := r.table(httpWorkload)
	bare := t.row(httpBare)
	both, silent := t.row(httpBoth).ratio(bare), t.row(httpSilent).ratio(bare)
	rate := t.row(httpBoth).ratio(t.row(httpHTTPRate))
	speed := func(s report.Spread) string { return fmt.Sprintf("%.2f× the requests", 1/s.Median) }
	return []report.Target{
		ratioTarget("http: both dialects / bare (0.8× the requests)", 1.25, both, speed(both)),
		ratioTarget("http: headers off / bare (0.9× the requests)", 1.11, silent, speed(silent)),
		ratioTarget("http: both dialects / httprate", 1, rate, speed(rate)),
	}
}

// cpuRatio is ratio by CPU time, which other processes disturb less.
func (r *row) cpuRatio(base *row) report.Spread {
	var all []float64
	for i := range min(len(r.samples), len(base.samples)) {
		all = append(all, r.samples[i].cpu/base.samples[i].cpu)
	}
	return report.SpreadOf(all)
}

// printHTTP shows the workload in requests a second.
func (t *table) printHTTP(w io.Writer) {
	fmt.Fprintf(w, "\n%s: a handler that writes two bytes, on loopback with its clients, %d connections, rounds: %d\n",
		t.workload, runtime.GOMAXPROCS(0)*httpDepth, len(t.rows[0].samples))
	rows := [][]string{{"", "requests/s", "range", "× bare", "CPU µs", "× bare", "allocs"}}
	bare := t.row(httpBare)
	for i := range t.rows {
		r := &t.rows[i]
		ns, times, cpu := r.ns(), "–", "–"
		if bare != nil {
			times, cpu = report.Number(1/r.ratio(bare).Median, 3), report.Number(r.cpuRatio(bare).Median, 3)
		}
		rows = append(rows, []string{
			r.label, report.Number(1e9/ns.Median, 0), "[" + report.Number(1e9/ns.High, 0) + "–" + report.Number(1e9/ns.Low, 0) + "]",
			times, report.Number(r.cpu().Median/1e3, 1), cpu, allocs(r.allocs().Median),
		})
	}
	report.Align(w, rows)
	if n := t.disturbed(); n > 0 {
		fmt.Fprintf(w, "  ! disturbed, and left out where others are left: %d of %d measurements\n", n, len(t.rows)*len(t.rows[0].samples))
	}
	for _, s := range t.warnings {
		fmt.Fprintln(w, "  ! "+s)
	}
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
				c := &httpClient{address: ln.Addr().String()}
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
	w := &forgetful{header: http.Header{}}
	r := httptest.NewRequest(http.MethodGet, "/v1/orders/17", nil)
	return func(key string) bool {
		clear(w.header)
		r.Header["X-Api-Key"] = []string{key}
		h.ServeHTTP(w, r)
		return true
	}
}

// forgetful is a writer that keeps nothing.
type forgetful struct{ header http.Header }

func (w *forgetful) Header() http.Header         { return w.header }
func (w *forgetful) Write(b []byte) (int, error) { return len(b), nil }
func (w *forgetful) WriteHeader(int)             {}

// httpDepth is how many connections a goroutine keeps busy.
const httpDepth = 16

// httpClient is one goroutine's connections, each with a request under way. It
// knows what the answer ends with and parses no more than that, so that what is measured is the server.
type httpClient struct {
	_       apart
	address string
	conns   [httpDepth]*httpConn
	next    int
	_       apart
}

type httpConn struct {
	net.Conn
	request []byte
	key     []byte // in the request
	pending bool
	answer  [1024]byte
}

// check sends a request where an earlier one has been answered, and tells whether that one was allowed.
func (c *httpClient) check(key string) bool {
	conn := c.conns[c.next]
	if conn == nil {
		var err error
		if conn, err = dial(c.address); err != nil {
			return false
		}
		c.conns[c.next] = conn
	}
	c.next = (c.next + 1) % httpDepth
	if conn.pending {
		if err := conn.receive(); err != nil {
			return false
		}
	}
	copy(conn.key, key)
	_, err := conn.Write(conn.request)
	conn.pending = err == nil
	return conn.pending
}

func (c *httpClient) close() {
	for _, conn := range c.conns {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

func dial(address string) (*httpConn, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	c := &httpConn{Conn: conn}
	c.request = fmt.Appendf(nil, "GET /v1/orders/17 HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\nX-API-Key: %s\r\n\r\n", workload.MakeKeys(1).At(0))
	at := bytes.Index(c.request, []byte(workload.KeyPrefix))
	c.key = c.request[at : at+workload.KeyLength]
	return c, nil
}

// receive reads one answer.
func (c *httpConn) receive() error {
	c.pending = false
	for n := 0; ; {
		m, err := c.Read(c.answer[n:])
		if err != nil {
			return err
		}
		n += m
		if bytes.HasSuffix(c.answer[:n], []byte("\r\n\r\nok")) {
			if bytes.HasPrefix(c.answer[:], []byte("HTTP/1.1 200 ")) {
				return nil
			}
			return errors.New("refused")
		}
		if n == len(c.answer) {
			return errors.New("an answer that isn't the handler's")
		}
	}
}
