// Package gateway is a reverse proxy with the limiter in front, for operators without a gateway of
// their own.
//
//	g, err := gateway.New(gateway.Options{Upstream: upstream, Limit: httplimit.New(limiter, httplimit.Options{})})
//	…
//	err = gateway.NewServer(g).Serve(listener)
//
// Requests that the limiter refuses never reach the upstream. Admitted requests are forwarded as they came: path and
// query byte for byte, and bodies as they arrive, in both directions. The gateway changes only what a proxy must
// (hop-by-hop headers), what would let a client lie about itself (X-Forwarded-*), and the rate-limit headers of the
// response. The limiter refuses a query if an upstream could read another API key in it than the limiter has read.
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

// Options are the options of a Gateway. Upstream and Limit are required.
type Options struct {
	// Upstream is the http or https URL of the server to which requests are forwarded. If the URL has a path, the path
	// of each request is appended to it.
	Upstream *url.URL
	// Limit decides which requests are forwarded.
	Limit *httplimit.Middleware
	// TrustedProxies are the proxies whose X-Forwarded-* and Forwarded headers are passed on. Use the same proxies as
	// in Limit.
	TrustedProxies []netip.Prefix
	// AllowUnsafePaths forwards paths that servers read in different ways. By default, such paths get status 400. They
	// contain encoded slashes (%2F), backslashes (raw or %5C), NUL (%00), any of these or a dot encoded twice (%252e),
	// overlong UTF-8, dot segments with parameters (..;), or, if Upstream has a path, dot segments (..).
	AllowUnsafePaths bool

	// DialTimeout bounds the time to connect to the upstream, including the TLS handshake. Zero means 5 s.
	DialTimeout time.Duration
	// ResponseTimeout bounds the time until the upstream's response begins. Zero means 60 s.
	ResponseTimeout time.Duration
	// StallTimeout is how long a client may hold up the upstream: by not sending the next part of its body before the
	// response begins, or by not reading the next part of the response. It is also how far a body may fall behind a
	// rate of 500 bytes per second. Zero means 60 s.
	StallTimeout time.Duration
	// UsageHeader names the header in which the upstream reports the amounts that a request used, such as "812", which
	// means tokens, or "tokens=812, usd=0.012". If empty, the gateway reads the usage from the responses of AI models.
	UsageHeader string
	// Learned estimates how long models' answers will be. If nil, the gateway creates one.
	Learned *Learned
	// TLS is the TLS configuration for an https upstream. If nil, the system's certificate authorities apply.
	TLS *tls.Config

	// Logger logs failures of the upstream, without queries and headers. If nil, nothing is logged.
	Logger *slog.Logger
}

const (
	// drainTimeout is how long the rest of an unwanted body may take to arrive, so that its connection can be reused.
	// The server reads at most 256 KiB of the rest.
	drainTimeout = 5 * time.Second
	// idlePerUpstream is how many idle connections are kept for up to idleTime. It is enough for bursts, but doesn't
	// use up an upstream's file descriptors.
	idlePerUpstream = 256
	idleTime        = 90 * time.Second
)

// Gateway forwards requests that the limiter admits. Create one with [New], and serve it with
// [NewServer].
type Gateway struct {
	opts      Options
	prefix    string // path of the upstream's URL, escaped
	stall     time.Duration
	log       *slog.Logger
	outage    outage // failures without a response
	broken    outage // failures in the middle of a response
	room      room
	limited   http.Handler
	proxy     *httputil.ReverseProxy
	transport *http.Transport
	closing   context.Context
	close     context.CancelFunc
}

var _ http.Handler = (*Gateway)(nil)

// New creates a gateway. It doesn't check whether the upstream can be reached.
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
		// Proxy isn't set, because environment variables must not redirect requests.
		DialContext:           (&net.Dialer{Timeout: dial, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   dial,
		TLSClientConfig:       opts.TLS.Clone(),
		ForceAttemptHTTP2:     true,
		ResponseHeaderTimeout: cmp.Or(opts.ResponseTimeout, 60*time.Second),
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       idleTime,
		MaxIdleConns:          idlePerUpstream,
		MaxIdleConnsPerHost:   idlePerUpstream,
		DisableCompression:    true, // only clients ask for compression, and the gateway doesn't decompress
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
	switch { // the errors leave out the URL, because it may contain a secret
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

// Close closes WebSockets, and idle connections to the upstream. A server's Shutdown doesn't close them.
func (g *Gateway) Close() {
	g.close()
	g.transport.CloseIdleConnections()
}

// ServeHTTP forwards the requests that the limiter admits.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	// If the request is refused, the server reads the rest of the body before it responds, and flushes the response
	// after ServeHTTP has returned. Both need deadlines.
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
	// Remove the headers that are set so far until the upstream's response arrives. Otherwise, the proxy would add the
	// upstream's headers to them, and drop all of them after a status 103.
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
	p.Out.Host = "" // the upstream gets the Host of its own URL, and the client's Host in X-Forwarded-Host
	// Clients may switch only to WebSocket. With h2c, and other protocols that carry requests, a client could bypass
	// the limiter with further requests.
	if up := p.Out.Header.Get("Upgrade"); up != "" && !strings.EqualFold(up, "websocket") {
		for _, name := range []string{"Upgrade", "Connection", "Http2-Settings"} {
			delete(p.Out.Header, name)
		}
	}
	guard.DropSessions(p.Out.Header)
	g.setForwarded(p.In, p.Out.Header)
	if c := callOf(p.In); c != nil && c.reserved {
		p.Out.Header.Set("Accept-Encoding", "identity") // otherwise the gateway couldn't read the usage
		p.Out.Header.Del("Range")
		if c.edited {
			dropDigests(p.Out.Trailer)
		}
	}
	if name := g.opts.UsageHeader; name != "" { // otherwise the client could set the usage through an upstream that echoes this header
		p.Out.Header.Del(name)
		p.Out.Trailer.Del(name)
	}
	tracing.Inject(p.In.Context(), p.Out.Header)
	exchangeOf(p.In).body.takeTrailer(p.Out.Trailer)
}

func (g *Gateway) modify(res *http.Response) error {
	if s := res.StatusCode; (s < 200 || s > 599) && s != http.StatusSwitchingProtocols {
		return fmt.Errorf("the upstream's status can't be: %d", s) // net/http would panic at a status below 100
	}
	g.outage.answered()
	x := exchangeOf(res.Request)
	x.merge(res)
	x.body.answered()
	g.watchUsage(res)
	return nil
}

// buffers is a pool of copy buffers for the proxy.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

// Bounds of a server that faces the internet.
const (
	// ReadHeaderTimeout bounds the time for a request's headers to arrive, and for a TLS handshake.
	ReadHeaderTimeout = 5 * time.Second
	// IdleTimeout is how long a connection may stay open without a request.
	IdleTimeout = 120 * time.Second
	// MaxHeaderBytes bounds the size of a request's headers, to which net/http adds 4 KiB. Larger headers get status
	// 431.
	MaxHeaderBytes = 16 << 10
	// MaxStreams is how many concurrent requests an HTTP/2 connection may have.
	MaxStreams = 250
)

// NewServer creates a server for untrusted clients. It bounds slow or large headers, idle connections and HTTP/2
// streams. It doesn't bound the time for bodies and responses, which may stream for hours. A Gateway notices by itself
// that a client stalls; other handlers should set deadlines when they read bodies.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: ReadHeaderTimeout, IdleTimeout: IdleTimeout, MaxHeaderBytes: MaxHeaderBytes,
		// Without this, net/http would respond to OPTIONS * itself, and bypass the limits.
		DisableGeneralOptionsHandler: true,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: MaxStreams,
			// A connection with open streams is never idle. Pings find out that its client has vanished.
			SendPingTimeout:  30 * time.Second,
			WriteByteTimeout: 60 * time.Second,
		},
	}
}
