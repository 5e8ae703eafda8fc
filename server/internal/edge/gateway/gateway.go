// Package gateway is a reverse proxy with the limiter in front, for operators without a gateway of
// their own.
//
//	g, err := gateway.New(gateway.Options{Upstream: upstream, Limit: httplimit.New(limiter, httplimit.Options{})})
//	…
//	err = gateway.NewServer(g).Serve(listener)
//
// Requests that the limiter refuses never reach the upstream. Admitted requests are forwarded as they
// came: path and query byte for byte, and bodies as they arrive, in both directions. The gateway
// changes only what a proxy must (hop-by-hop headers), what would let a client lie about itself
// (X-Forwarded-*), and the rate-limit headers of the answer, which are Weir's. The limiter refuses
// queries in which an upstream could read another API key than it did.
package gateway

import (
	"cmp"
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

// Options of a Gateway. Upstream and Limit are required.
type Options struct {
	// Upstream is where to forward requests: an http or https URL. If it has a path, that is put before the path
	// of each request.
	Upstream *url.URL
	// Limit decides which requests are forwarded.
	Limit *httplimit.Middleware
	// TrustedProxies are the proxies whose X-Forwarded-* and Forwarded headers are passed on. They should be the
	// same as in Limit.
	TrustedProxies []netip.Prefix
	// AllowUnsafePaths forwards paths with encoded slashes (%2F), backslashes (raw or %5C), NUL
	// (%00), each of these or dots encoded twice (%252e), overlong UTF-8, dot segments with
	// parameters (..;), and .. if Upstream has a path. By default these get 400, since servers read
	// them in different ways.
	AllowUnsafePaths bool

	// DialTimeout limits the time for connecting to the upstream, including its TLS handshake. Zero means 5 s.
	DialTimeout time.Duration
	// ResponseTimeout limits the time until the upstream begins its response. Zero means 60 s.
	ResponseTimeout time.Duration
	// StallTimeout is how long a client may delay the upstream, by not sending the next part of its body before
	// the response begins, or by not reading the next part of the response. It is also how far a body may fall
	// behind 500 bytes per second. Zero means 60 s.
	StallTimeout time.Duration
	// UsageHeader names the header in which the upstream reports what a request used: "812", which means tokens,
	// or "tokens=812, usd=0.012". If empty, the gateway reads the usage from the responses of AI models.
	UsageHeader string
	// Learned estimates the length of models' answers. If nil, the gateway creates one.
	Learned *Learned
	// TLS configures an https upstream. If nil, the system's certificate authorities apply.
	TLS *tls.Config

	// Logger logs failures of the upstream, without queries and headers. If nil, nothing is logged.
	Logger *slog.Logger
}

const (
	// drainTimeout is how long the rest of an unwanted body may take to arrive, so that the connection can be
	// reused. The server reads at most 256 KiB of it.
	drainTimeout = 5 * time.Second
	// idlePerUpstream is how many idle connections are kept, for idleTime: enough for bursts, and few
	// enough for an upstream's file descriptors.
	idlePerUpstream = 256
	idleTime        = 90 * time.Second
)

// Gateway forwards requests that the limiter admits. Create one with [New], and serve it with
// [NewServer].
type Gateway struct {
	opts      Options
	prefix    string // the path of the upstream, escaped
	stall     time.Duration
	log       *slog.Logger
	outage    outage // requests without a response
	broken    outage // responses that failed in the middle
	room      room
	limited   http.Handler
	proxy     *httputil.ReverseProxy
	transport *http.Transport
	closing   context.Context
	close     context.CancelFunc
}

var _ http.Handler = (*Gateway)(nil)

// New creates a gateway. It doesn't check that the upstream is reachable.
func New(opts Options) (*Gateway, error) {
	if err := validate(&opts); err != nil {
		return nil, err
	}
	if opts.Learned == nil {
		opts.Learned = &Learned{}
	}
	g := &Gateway{
		opts:   opts,
		prefix: opts.Upstream.EscapedPath(),
		stall:  cmp.Or(opts.StallTimeout, 60*time.Second),
		log:    opts.Logger,
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	g.outage.log, g.outage.message = g.log, noAnswer
	g.broken.log, g.broken.message = g.log, brokeAnswer
	dial := cmp.Or(opts.DialTimeout, 5*time.Second)
	g.transport = &http.Transport{
		// Proxy isn't set, because the environment must not redirect requests.
		DialContext:           (&net.Dialer{Timeout: dial, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   dial,
		TLSClientConfig:       opts.TLS.Clone(),
		ForceAttemptHTTP2:     true,
		ResponseHeaderTimeout: cmp.Or(opts.ResponseTimeout, 60*time.Second),
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       idleTime,
		MaxIdleConns:          idlePerUpstream,
		MaxIdleConnsPerHost:   idlePerUpstream,
		DisableCompression:    true, // don't ask for compression unless the client does, and don't decompress
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
	switch { // errors leave out the URL, which may contain a secret
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

// Close closes WebSockets and idle connections to the upstream, which a server's Shutdown doesn't close.
func (g *Gateway) Close() {
	g.close()
	g.transport.CloseIdleConnections()
}

// ServeHTTP forwards the requests that the limiter admits.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	// The server reads the rest of a refused request's body before it responds, and flushes the response after
	// ServeHTTP returns. Both need deadlines.
	drain := r.ProtoMajor == 1 && hasBody(r)
	if drain {
		_ = control.SetReadDeadline(time.Now().Add(drainTimeout))
	}
	defer func() {
		if drain {
			_ = control.SetReadDeadline(time.Now().Add(drainTimeout))
		}
		_ = control.SetWriteDeadline(time.Now().Add(g.stall))
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
	// Move the headers set so far out of the way until the response comes. The proxy would add the upstream's
	// headers to them, and drop all of them after a 103.
	x := &exchange{own: maps.Clone(w.Header()), names: g.opts.Limit.OwnHeaders()}
	clear(w.Header())
	c := &client{ResponseWriter: w, control: http.NewResponseController(w), patience: g.stall}
	r = r.WithContext(context.WithValue(ctx, exchangeKey{}, x))
	x.body = newRequestBody(r, c, cancel)
	defer x.body.finish()
	g.proxy.ServeHTTP(c, r)
	x.dropLimits(w.Header())
}

func (g *Gateway) rewrite(p *httputil.ProxyRequest) {
	p.Out.URL = g.target(p.In)
	p.Out.Host = "" // the upstream gets its own Host, and the client's in X-Forwarded-Host
	// Clients may switch only to WebSocket. Over h2c and other protocols that carry requests, a client could send
	// further requests without the limiter.
	if up := p.Out.Header.Get("Upgrade"); up != "" && !strings.EqualFold(up, "websocket") {
		for _, name := range []string{"Upgrade", "Connection", "Http2-Settings"} {
			delete(p.Out.Header, name)
		}
	}
	guard.DropSessions(p.Out.Header)
	g.setForwarded(p.In, p.Out.Header)
	if c := callOf(p.In); c != nil && c.reserved {
		p.Out.Header.Set("Accept-Encoding", "identity") // the gateway must be able to read the whole response
		p.Out.Header.Del("Range")
		if c.edited {
			dropDigests(p.Out.Trailer)
		}
	}
	if name := g.opts.UsageHeader; name != "" { // an upstream that echoes this header would report what the client claims
		p.Out.Header.Del(name)
		p.Out.Trailer.Del(name)
	}
	tracing.Inject(p.In.Context(), p.Out.Header)
	exchangeOf(p.In).body.takeTrailer(p.Out.Trailer)
}

func (g *Gateway) modify(res *http.Response) error {
	if s := res.StatusCode; (s < 200 || s > 599) && s != http.StatusSwitchingProtocols {
		return fmt.Errorf("the upstream's status can't be: %d", s) // net/http panics at a status below 100
	}
	g.outage.answered()
	x := exchangeOf(res.Request)
	x.merge(res)
	x.body.answered()
	g.watchUsage(res)
	return nil
}

// buffers is the proxy's pool of copy buffers.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

// Limits of a server that faces the internet.
const (
	// ReadHeaderTimeout limits the time for a request's headers, and for a TLS handshake.
	ReadHeaderTimeout = 5 * time.Second
	// IdleTimeout is how long a connection may wait for its next request.
	IdleTimeout = 120 * time.Second
	// MaxHeaderBytes limits the size of a request's headers. net/http adds 4 KiB. Larger headers get 431.
	MaxHeaderBytes = 16 << 10
	// MaxStreams is how many concurrent requests an HTTP/2 connection may have.
	MaxStreams = 250
)

// NewServer creates a server for untrusted clients. It limits slow or large headers, idle connections and HTTP/2
// streams. It doesn't limit the time for bodies and responses, which may stream for hours: a Gateway notices
// clients that stall, and other handlers should set deadlines when they read bodies.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: ReadHeaderTimeout, IdleTimeout: IdleTimeout, MaxHeaderBytes: MaxHeaderBytes,
		// Without this, net/http would answer OPTIONS * itself, and bypass the limits.
		DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: MaxStreams,
			// A connection with open streams is never idle. Pings detect whether its client has vanished.
			SendPingTimeout:  30 * time.Second,
			WriteByteTimeout: 60 * time.Second,
		},
	}
}
