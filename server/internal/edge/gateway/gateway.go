package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/server/internal/edge/guard"
	"github.com/weirhq/weir/tracing"
)

// Options of a Gateway. Upstream and Limit must be given; the rest has useful zeros.
type Options struct {
	// Upstream is where requests go: an http or https URL. Its path, if it has one, is put in front of theirs.
	Upstream *url.URL
	// Limit decides which requests go there.
	Limit *httplimit.Middleware
	// TrustedProxies are those whose X-Forwarded-* and Forwarded are passed on. Give Limit the same.
	TrustedProxies []netip.Prefix
	// PreserveHost sends the client's Host to the upstream. By default it gets its own, and the client's as X-Forwarded-Host.
	PreserveHost bool
	// AllowUnsafePaths forwards paths with encoded slashes (%2F), backslashes (raw or %5C), NUL (%00), each of these and dots
	// encoded twice (%252e), overlong UTF-8, dot segments with parameters (..;), and .. where Upstream has a path. By default they
	// are refused with 400, since servers read them in different ways, and some would find a limited endpoint behind them.
	AllowUnsafePaths bool

	// DialTimeout is how long connecting to the upstream may take, and its TLS handshake. 0 means 5 s. Of this
	// and the timeouts below, a negative value means no limit.
	DialTimeout time.Duration
	// ResponseTimeout is how long the upstream may take, once it has the request, to begin its answer. 0 means 60 s.
	ResponseTimeout time.Duration
	// IdleTimeout is how long a connection to the upstream is kept for the next request. 0 means 90 s.
	IdleTimeout time.Duration
	// StallTimeout is how long a client may hold up the upstream: by not sending the next part of its body, until the answer begins, or by
	// not taking the next part of the answer. In all it may be waited for that long, and a second more for every 500 bytes that it
	// sends. Neither body is limited in length. 0 means 60 s.
	StallTimeout time.Duration
	// UsageHeader names a header in which the upstream says what a request took: "812", which is tokens, or "tokens=812, usd=0.012".
	// "" means that the answers of AI models are read for it.
	UsageHeader string
	// Learned remembers how long models' answers are. Nil means that the gateway has one of its own.
	Learned *Learned
	// TLS is for an https upstream: RootCAs for a certificate authority of one's own. Nil means the system's.
	TLS *tls.Config

	// Logger is told of upstreams that fail. It gets neither queries nor headers. Nil means nobody is told.
	Logger *slog.Logger
}

// drainTimeout is how long the rest of a body that nobody wants may take to
// arrive, so that the connection can be kept. The server reads 256 KiB of it at most.
const drainTimeout = 5 * time.Second

// idlePerUpstream is how many idle connections are kept: enough for bursts, few enough for an upstream's file descriptors.
const idlePerUpstream = 256

// Gateway forwards what the limiter admits. Make one with [New]; it is an
// http.Handler for a server such as [NewServer].
type Gateway struct {
	opts      Options
	prefix    string // of the upstream, escaped
	trusted   []netip.Prefix
	stall     time.Duration
	log       *slog.Logger
	outage    outage // answers that don't come
	broken    outage // answers that break off
	room      room
	limited   http.Handler
	proxy     *httputil.ReverseProxy
	transport *http.Transport
	closing   context.Context
	close     context.CancelFunc
}

var _ http.Handler = (*Gateway)(nil)

// New prepares a gateway. It doesn't ask whether the upstream is there.
func New(opts Options) (*Gateway, error) {
	if err := validate(&opts); err != nil {
		return nil, err
	}
	if opts.Learned == nil {
		opts.Learned = &Learned{}
	}
	g := &Gateway{
		opts:    opts,
		prefix:  opts.Upstream.EscapedPath(),
		trusted: foldPrefixes(opts.TrustedProxies),
		stall:   timeout(opts.StallTimeout, 60*time.Second),
		log:     opts.Logger,
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	g.outage.log, g.outage.message = g.log, noAnswer
	g.broken.log, g.broken.message = g.log, brokeAnswer
	dial := timeout(opts.DialTimeout, 5*time.Second)
	g.transport = &http.Transport{
		// No Proxy: the environment of the process has no say in where requests go.
		DialContext:           (&net.Dialer{Timeout: dial, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   dial,
		TLSClientConfig:       opts.TLS.Clone(),
		ForceAttemptHTTP2:     true,
		ResponseHeaderTimeout: timeout(opts.ResponseTimeout, 60*time.Second),
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       timeout(opts.IdleTimeout, 90*time.Second),
		MaxIdleConns:          idlePerUpstream,
		MaxIdleConnsPerHost:   idlePerUpstream,
		DisableCompression:    true, // what the client didn't ask for isn't asked for, and nothing is unpacked on the way
	}
	g.proxy = &httputil.ReverseProxy{
		Rewrite:        g.rewrite,
		ModifyResponse: g.modify,
		ErrorHandler:   g.fail,
		Transport:      g.transport,
		FlushInterval:  -1,
		BufferPool:     &buffers{},
		ErrorLog:       log.New(brokenAnswers{&g.broken}, "", 0),
	}
	g.limited = opts.Limit.Wrap(http.HandlerFunc(g.forward))
	g.closing, g.close = context.WithCancel(context.Background())
	return g, nil
}

func validate(o *Options) error {
	u := o.Upstream
	switch { // without what was given, which may hold a secret
	case u == nil:
		return errors.New("gateway: upstream: must be given")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return errors.New("gateway: upstream: must be a URL such as http://127.0.0.1:9000")
	case u.User != nil:
		return errors.New("gateway: upstream: must not hold a user or password: they would not be sent")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return errors.New("gateway: upstream: must have neither query nor fragment")
	case o.Limit == nil:
		return errors.New("gateway: limit: must be given")
	}
	return nil
}

// timeout is d, its default, or 0 for none.
func timeout(d, byDefault time.Duration) time.Duration {
	if d == 0 {
		return byDefault
	}
	return max(d, 0)
}

// Close ends what a server's Shutdown doesn't wait for: WebSockets that are still
// open, and idle connections to the upstream. Call it once the server has shut down.
func (g *Gateway) Close() {
	g.close()
	g.outage.close()
	g.broken.close()
	g.transport.CloseIdleConnections()
}

// ServeHTTP asks the limiter, and forwards what it admits.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	// The server reads the rest of a refused request's body before it answers, and flushes
	// the answer once this returns. Neither may take for ever.
	drain := r.ProtoMajor == 1 && hasBody(r)
	if drain {
		_ = control.SetReadDeadline(time.Now().Add(drainTimeout))
	}
	defer func() {
		if drain {
			_ = control.SetReadDeadline(time.Now().Add(drainTimeout))
		}
		if g.stall > 0 {
			_ = control.SetWriteDeadline(time.Now().Add(g.stall))
		}
	}()
	r, bad := g.checkTarget(r)
	if bad != nil {
		bad.Write(w)
		return
	}
	r, answered := g.estimate(w, r)
	if answered {
		return
	}
	defer callOf(r).release()
	g.limited.ServeHTTP(w, r)
}

func hasBody(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody }

// forward sends an admitted request to the upstream, and its answer to the client.
func (g *Gateway) forward(w http.ResponseWriter, r *http.Request) {
	if fault := callOf(r).admitted(r); fault != nil {
		g.settleNothing(r)
		fault.Write(w)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if r.Header["Upgrade"] != nil {
		defer context.AfterFunc(g.closing, cancel)()
	}
	// The headers that are there already, the limiter's among them, wait in the exchange until the
	// answer comes: the proxy would add the upstream's to them, and drop them all after a 103.
	x := &exchange{own: maps.Clone(w.Header()), names: g.opts.Limit.OwnHeaders()}
	clear(w.Header())
	c := &client{ResponseWriter: w, control: http.NewResponseController(w), patience: g.stall}
	r = r.WithContext(context.WithValue(ctx, exchangeKey{}, x))
	if hasBody(r) {
		x.body = newRequestBody(r, c, cancel)
		r.Body = x.body
		defer x.body.finish()
	}
	g.proxy.ServeHTTP(c, r)
	x.dropTrailers(w.Header())
}

// rewrite makes the upstream's request of the client's.
func (g *Gateway) rewrite(p *httputil.ProxyRequest) {
	p.Out.URL = g.target(p.In)
	if p.Out.Host = ""; g.opts.PreserveHost {
		p.Out.Host = p.In.Host
	}
	// Of protocols to switch to, WebSocket alone is offered: over h2c, and others that carry
	// requests, a client could go on asking the upstream with no limiter in between.
	if up := p.Out.Header.Get("Upgrade"); up != "" && !strings.EqualFold(up, "websocket") {
		for _, name := range []string{"Upgrade", "Connection", "Http2-Settings"} {
			delete(p.Out.Header, name)
		}
	}
	guard.DropSessions(p.Out.Header)
	g.setForwarded(p.In, p.Out.Header)
	if c := callOf(p.In); c != nil && c.reserved {
		p.Out.Header.Set("Accept-Encoding", "identity") // the answer is to be read
		p.Out.Header.Del("Range")                       // and whole
		if c.edited {
			dropSeals(p.Out.Trailer)
		}
	}
	if name := g.opts.UsageHeader; name != "" { // an upstream that repeats it would believe the client
		p.Out.Header.Del(name)
		p.Out.Trailer.Del(name)
	}
	tracing.Inject(p.In.Context(), p.Out.Header)
	exchangeOf(p.In).body.takeTrailer(p.Out.Trailer)
}

// modify has the last word on the upstream's answer.
func (g *Gateway) modify(res *http.Response) error {
	if s := res.StatusCode; (s < 200 || s > 599) && s != http.StatusSwitchingProtocols {
		return fmt.Errorf("the upstream's status can't be: %d", s) // net/http would panic at one below 100
	}
	g.outage.answered()
	x := exchangeOf(res.Request)
	x.merge(res)
	x.body.answered()
	g.watchUsage(res)
	return nil
}

// buffers lends the proxy what it copies through.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
