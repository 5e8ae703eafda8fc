package gateway

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for something that should happen at once before it fails.
const patience = 30 * time.Second

// plenty is a rule that admits every request of a test.
var plenty = weir.Rule{ID: "plenty", By: []string{"ip"}, Limits: []weir.Limit{weir.PerHour(1_000_000)}}

// few returns a rule that admits n requests per client. The next one would have to wait for a day.
func few(id, endpoint string, n int64) weir.Rule {
	return weir.Rule{
		ID: id, Match: weir.Match{Endpoint: endpoint}, By: []string{"ip"},
		Limits: []weir.Limit{{Count: n, Window: time.Hour, Refill: 1.0 / 86400}},
	}
}

func limiterOf(t *testing.T, opts weir.Options, rules ...weir.Rule) *weir.Limiter {
	t.Helper()
	set, err := weir.Compile(weir.Rules{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	return weir.NewLimiter(memstore.New(memstore.Options{}), set, opts)
}

// upstream is a server that records the requests it receives.
type upstream struct {
	*httptest.Server
	mu   sync.Mutex
	seen []*http.Request
}

func startUpstream(t *testing.T, h http.HandlerFunc) *upstream {
	t.Helper()
	u := &upstream{}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		u.seen = append(u.seen, r.Clone(r.Context()))
		u.mu.Unlock()
		if h != nil {
			h(w, r)
		}
	}))
	u.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) requests() []*http.Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.seen)
}

func (u *upstream) last(t *testing.T) *http.Request {
	t.Helper()
	seen := u.requests()
	if len(seen) == 0 {
		t.Fatal("the upstream saw nothing")
	}
	return seen[len(seen)-1]
}

// journal records log lines.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

// loud reports whether a warning or an error was logged.
func (j *journal) loud() bool {
	s := j.String()
	return strings.Contains(s, "level=WARN") || strings.Contains(s, "level=ERROR")
}

// door is a gateway on a real server, with a client for it.
type door struct {
	*httptest.Server
	gateway *Gateway
	client  *http.Client
	log     *journal
	asked   sync.Map // by X-Ask, a channel that is closed when the gateway is done with the request: see doWhole
}

type setup struct {
	upstream string
	limiter  *weir.Limiter
	limit    httplimit.Options
	opts     Options
	tls      bool
	handled  chan<- struct{} // receives a value when the gateway is done with a request
	header   http.Header     // response headers that are set before the gateway runs
}

func start(t *testing.T, s setup) *door {
	t.Helper()
	u, err := url.Parse(s.upstream)
	if err != nil {
		t.Fatal(err)
	}
	if s.limiter == nil {
		s.limiter = limiterOf(t, weir.Options{}, plenty)
	}
	d := &door{log: &journal{}}
	s.opts.Upstream = u
	s.limit.TrustedProxies = s.opts.TrustedProxies
	s.opts.Limit = httplimit.New(s.limiter, s.limit)
	s.opts.Logger = slog.New(slog.NewTextHandler(d.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if d.gateway, err = New(s.opts); err != nil {
		t.Fatal(err)
	}
	d.Server = httptest.NewUnstartedServer(nil)
	d.Config = NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.handled != nil {
			defer func() { s.handled <- struct{}{} }()
		}
		if done, ok := d.asked.Load(r.Header.Get("X-Ask")); ok {
			defer close(done.(chan struct{}))
		}
		maps.Copy(w.Header(), s.header)
		d.gateway.ServeHTTP(w, r)
	}))
	d.Config.ErrorLog = log.New(d.log, "", 0)
	if s.tls {
		d.EnableHTTP2 = true
		d.StartTLS()
	} else {
		d.Start()
	}
	transport := d.Server.Client().Transport.(*http.Transport).Clone()
	transport.DisableCompression = true
	transport.MaxIdleConnsPerHost = 1000
	d.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() {
		d.client.CloseIdleConnections()
		d.Close()
		d.gateway.Close()
	})
	return d
}

func (d *door) addr() string { return d.Listener.Addr().String() }

// answer is a response whose body was read.
type answer struct {
	*http.Response
	body string
}

func (d *door) do(t *testing.T, req *http.Request) answer {
	t.Helper()
	res, err := d.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, res)
}

// doWhole is like do, but also waits until the gateway is done. The client may have the whole response a moment
// earlier.
func (d *door) doWhole(t *testing.T, req *http.Request) answer {
	t.Helper()
	done := make(chan struct{})
	id := rand.Text()
	d.asked.Store(id, done)
	req.Header.Set("X-Ask", id)
	a := d.do(t, req)
	await(t, done, "the end at the gateway")
	return a
}

func read(t *testing.T, res *http.Response) answer {
	t.Helper()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res, string(b)}
}

func (d *door) get(t *testing.T, path string) answer {
	t.Helper()
	return d.do(t, d.request(t, "GET", path, nil))
}

func (d *door) request(t *testing.T, method, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, d.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// dial opens a connection for bytes that no client library would send.
func (d *door) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// raw sends a request byte for byte, and returns the response.
func (d *door) raw(t *testing.T, text string) answer {
	t.Helper()
	conn := d.dial(t)
	defer conn.Close()
	return exchangeRaw(t, conn, text)
}

// rawPath requests a path exactly as it is spelled.
func (d *door) rawPath(t *testing.T, path string) answer {
	t.Helper()
	return d.raw(t, "GET "+path+" HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")
}

// await receives from a channel on which a value should arrive at once. Any goroutine may call it.
func await[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Errorf("%s didn't happen", what)
	}
	return v
}

// exchangeRaw sends a request on a connection, and leaves the connection open.
func exchangeRaw(t *testing.T, conn net.Conn, text string) answer {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, res)
}
