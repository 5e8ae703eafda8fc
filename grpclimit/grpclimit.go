package grpclimit

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Options of Interceptors. The zero value identifies clients by x-api-key, their certificate and
// their address.
type Options struct {
	// Identity says where identities come from. Headers are metadata; a call has no query. If
	// no source of the user is set, the user is the one that a verified client certificate names.
	Identity httplimit.Identity
	// Identify, if set, is called last, and may change the request to check. Values that it marks
	// as verified are trusted. It must not keep the request.
	Identify func(ctx context.Context, method string, req *weir.Request)
	// TrustedProxies are the proxies whose x-forwarded-for is believed. If empty, the peer is the
	// client.
	TrustedProxies []netip.Prefix
	// Answers says which rate-limit metadata clients get. Expose and Refusal have no effect.
	Answers httplimit.Answers
	// Cost returns how many tokens a call takes. The message is nil for a stream. If Cost is nil or
	// returns 0, a call takes 1.
	Cost func(ctx context.Context, method string, message any) int64
	// Skip reports which methods aren't limited. If nil, it is [Health].
	Skip func(method string) bool
	// MaxInFlight bounds how many calls are decided at a time. Further calls wait for up to a second,
	// and then get UNAVAILABLE. Calls in queues and handlers don't count. Zero means no bound.
	MaxInFlight int
	// MaxWaiting bounds how many calls may wait in queues at a time; one rule may have half of them.
	// Further calls get UNAVAILABLE. Zero means httplimit.DefaultMaxWaiting.
	MaxWaiting int
	// OnError, if set, is called when the store can't be reached. It is also called, while the
	// handler runs, when the slots of a call can't be renewed.
	OnError func(method string, err error)
	// Trace, if set, returns a context for the span of the check that continues the caller's trace,
	// which W3C's metadata describe. tracing.Continue does that. Behind otelgrpc it isn't needed.
	Trace func(ctx context.Context, traceparent, tracestate string) context.Context
}

// Health reports whether a method is of the standard health service.
func Health(method string) bool { return strings.HasPrefix(method, "/grpc.health.v1.Health/") }

// Interceptors limit calls. Make them with [New].
type Interceptors struct {
	limiter *weir.Limiter
	opts    Options
	limit   *httplimit.Middleware
	answers *httplimit.Answerer
}

// New returns the interceptors of a server. It panics if the options are invalid.
func New(l *weir.Limiter, opts Options) *Interceptors {
	if opts.Skip == nil {
		opts.Skip = Health
	}
	opts.Answers.Expose, opts.Answers.Refusal = false, httplimit.Template{}
	o := httplimit.Options{
		Identity: opts.Identity, TrustedProxies: opts.TrustedProxies, Answers: opts.Answers,
		MaxInFlight: opts.MaxInFlight, MaxWaiting: opts.MaxWaiting, Edge: "grpc",
	}
	if opts.OnError != nil {
		o.OnError = func(r *http.Request, err error) { opts.OnError(r.RequestURI, err) }
	}
	i := &Interceptors{limiter: l, opts: opts, limit: httplimit.New(l, o)}
	i.answers, _ = httplimit.NewAnswerer(opts.Answers) // they are valid: httplimit.New has made one, too
	return i
}

var (
	_ grpc.UnaryServerInterceptor  = (*Interceptors)(nil).Unary
	_ grpc.StreamServerInterceptor = (*Interceptors)(nil).Stream
)

// Unary limits a call. It is for grpc.UnaryInterceptor.
func (i *Interceptors) Unary(ctx context.Context, message any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	err = i.serve(ctx, info.FullMethod, message, func() (err error) {
		answer, err = handle(ctx, message)
		return err
	})
	return answer, err
}

// Stream limits a stream, once, when it begins. It is for grpc.StreamInterceptor.
func (i *Interceptors) Stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	return i.serve(stream.Context(), info.FullMethod, nil, func() error { return handle(server, stream) })
}

// serve serves a call if it is admitted. The error is the refusal, or else what next returns.
func (i *Interceptors) serve(ctx context.Context, method string, message any, next func() error) error {
	d, err := i.admit(ctx, method, message)
	switch {
	case err != nil:
		return err
	case !d.Unfinished():
		return next()
	}
	return i.last(ctx, method, d, next)
}

// admit decides a call, and sends its client the state of its limits. The error is a refusal.
func (i *Interceptors) admit(ctx context.Context, method string, message any) (weir.Decision, error) {
	if i.opts.Skip(method) {
		return weir.Decision{}, nil
	}
	c := calls.Get().(*call)
	defer c.release()
	user := i.read(ctx, c, method)
	v := i.limit.Ask(i.traced(ctx), &c.Request, func(req *weir.Request) {
		if user != "" {
			req.User = user
		}
		if i.opts.Cost != nil {
			req.Cost = i.opts.Cost(ctx, method, message)
		}
		if i.opts.Identify != nil {
			i.opts.Identify(ctx, method, req)
		}
	})
	defer v.Release()
	// A client chooses its deadline. One so short that the store can't decide must not be a way past
	// its limits.
	if !v.Serve() || v.Decision.Degraded && ctx.Err() != nil {
		if v.Decision.Unfinished() { // it was decided, and its client has left
			_ = i.limiter.Finish(context.WithoutCancel(ctx), &v.Decision, weir.Outcome{Abandoned: true})
		}
		return weir.Decision{}, i.refuse(ctx, c, v)
	}
	if stream := grpc.ServerTransportStreamFromContext(ctx); stream != nil { // nil if the interceptor wasn't called by a server
		if md := i.limits(c, v); len(md) > 0 {
			_ = stream.SetHeader(md) // fails if another interceptor has sent them already
		}
	}
	return v.Decision, nil
}

// call is a gRPC call in the form in which it is checked: as the HTTP request that carries it, with
// the headers that identify its client. limits are the headers that describe its limits. Calls are
// reused.
type call struct {
	http.Request
	limits http.Header
}

var calls = sync.Pool{New: func() any {
	return &call{http.Request{Method: http.MethodPost, URL: new(url.URL), Header: http.Header{}}, http.Header{}}
}}

// release returns a call to the pool, without what its client sent.
func (c *call) release() {
	clear(c.Header)
	clear(c.limits)
	c.Host, c.RemoteAddr = "", ""
	calls.Put(c)
}

// read fills in a call. user is the one that the client's certificate names, if nothing else names
// it.
func (i *Interceptors) read(ctx context.Context, c *call, method string) (user string) {
	c.URL.Path, c.RequestURI = method, method
	names := i.limit.Headers()
	if len(i.opts.TrustedProxies) > 0 {
		names = append(slices.Clip(names), "X-Forwarded-For")
	}
	for _, name := range names {
		if name != "Host" {
			if v := metadata.ValueFromIncomingContext(ctx, name); len(v) > 0 {
				c.Header[name] = v
			}
		} else if host := metadata.ValueFromIncomingContext(ctx, ":authority"); len(host) == 1 {
			c.Host = host[0]
		}
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		c.RemoteAddr = tcp.AddrPort().String() // allocates less than tcp.String
	} else if p.Addr != nil {
		c.RemoteAddr = p.Addr.String()
	}
	if i.opts.Identity.User == (httplimit.Source{}) {
		user = certified(p.AuthInfo)
	}
	return user
}

// certified returns the user that a verified client certificate names, as Envoy names it: the first
// URI, or else the first DNS name, or else the subject.
func certified(info credentials.AuthInfo) string {
	t, ok := info.(credentials.TLSInfo)
	if !ok || len(t.State.VerifiedChains) == 0 { // an unverified certificate proves nothing
		return ""
	}
	switch cert := t.State.VerifiedChains[0][0]; {
	case len(cert.URIs) > 0:
		return cert.URIs[0].String()
	case len(cert.DNSNames) > 0:
		return cert.DNSNames[0]
	default:
		return cert.Subject.String()
	}
}

func (i *Interceptors) traced(ctx context.Context) context.Context {
	if i.opts.Trace == nil {
		return ctx
	}
	parent := metadata.ValueFromIncomingContext(ctx, "traceparent")
	if len(parent) == 0 {
		return ctx
	}
	state := append(metadata.ValueFromIncomingContext(ctx, "tracestate"), "")
	return i.opts.Trace(ctx, parent[0], state[0])
}
