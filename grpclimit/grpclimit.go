package grpclimit

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Options of Interceptors. The zero value identifies clients by x-api-key, their certificate and their address.
type Options struct {
	// Identity says where identities come from. Headers are metadata; a call has no query. Without a source, the user is the one
	// that a verified client certificate names: by its first URI, else its first DNS name, else its subject.
	Identity httplimit.Identity
	// Identify, if set, has the last word on the call that is checked: what it fills in is as good as what it marks verified. It
	// must not keep the request.
	Identify func(ctx context.Context, method string, req *weir.Request)
	// TrustedProxies are those whose x-forwarded-for counts. None means that the peer is the client.
	TrustedProxies []netip.Prefix
	// Answers says which rate-limit metadata clients get. Its Expose and Refusal are HTTP's alone.
	Answers httplimit.Answers
	// Cost is how many tokens a call takes. The message is nil for a stream. Nil, and a cost of 0, mean 1.
	Cost func(ctx context.Context, method string, message any) int64
	// Skip tells which methods aren't limited. Nil means [Health]: a client at its limit isn't a server that is ill.
	Skip func(method string) bool
	// MaxInFlight is how many calls are decided at a time. Others wait for up to a second, and are then answered with UNAVAILABLE.
	// A call counts until it is decided: in the handler, or in a queue, it doesn't. 0 means no bound.
	MaxInFlight int
	// MaxWaiting is how many calls may wait in queues at a time; a rule may have half of them. More are refused with UNAVAILABLE.
	// 0 means httplimit.DefaultMaxWaiting.
	MaxWaiting int
	// OnError is told when the store couldn't be reached. The call goes on as its rules say. It is also told when slots of a call
	// couldn't be renewed, while the handler runs. Nil means nobody is told.
	OnError func(method string, err error)
	// Trace returns a context in the caller's trace, by the traceparent and tracestate of a call's metadata, so that the span of
	// the check is in it. tracing.Continue is one. It isn't needed behind otelgrpc. Nil leaves the context as it is.
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

// New prepares the interceptors of a server. It panics if the options can't be, as [httplimit.New] does.
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
	i.answers, _ = httplimit.NewAnswerer(opts.Answers) // which can be: httplimit.New has made one, too
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

// admit decides a call, and tells its client how its limits stand. The error is a refusal.
func (i *Interceptors) admit(ctx context.Context, method string, message any) (weir.Decision, error) {
	if i.opts.Skip(method) {
		return weir.Decision{}, nil
	}
	r, user := i.request(ctx, method)
	v := i.limit.Ask(i.traced(ctx), r, func(req *weir.Request) {
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
		return weir.Decision{}, i.refuse(ctx, v)
	}
	if stream := grpc.ServerTransportStreamFromContext(ctx); stream != nil { // a server has called the interceptor
		if md := i.limits(v); len(md) > 0 {
			_ = stream.SetHeader(md) // fails if another interceptor has sent them already
		}
	}
	return v.Decision, nil
}

// request returns a call in the form in which it is checked: the HTTP request that it is on the
// wire, with the headers that identify its client. user is the one that the client's certificate
// names, if nothing else names it.
func (i *Interceptors) request(ctx context.Context, method string) (r *http.Request, user string) {
	r = &http.Request{Method: http.MethodPost, URL: &url.URL{Path: method}, RequestURI: method, Header: http.Header{}}
	names := i.limit.Headers()
	if len(i.opts.TrustedProxies) > 0 {
		names = append(slices.Clip(names), "X-Forwarded-For")
	}
	for _, name := range names {
		if name != "Host" {
			if v := metadata.ValueFromIncomingContext(ctx, name); len(v) > 0 {
				r.Header[name] = v
			}
		} else if host := metadata.ValueFromIncomingContext(ctx, ":authority"); len(host) == 1 {
			r.Host = host[0]
		}
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return r, ""
	}
	if p.Addr != nil {
		r.RemoteAddr = p.Addr.String()
	}
	if i.opts.Identity.User == (httplimit.Source{}) {
		user = certified(p.AuthInfo)
	}
	return r, user
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

// traced returns the context of the check.
func (i *Interceptors) traced(ctx context.Context) context.Context {
	parent := metadata.ValueFromIncomingContext(ctx, "traceparent")
	if i.opts.Trace == nil || len(parent) == 0 {
		return ctx
	}
	state := append(metadata.ValueFromIncomingContext(ctx, "tracestate"), "")
	return i.opts.Trace(ctx, parent[0], state[0])
}
