package envoy

import (
	"context"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/weirhq/weir/server/internal/edge/forwardauth"
	"github.com/weirhq/weir/server/internal/edge/guard"
)

// Bounds of a server. What a connection can have under way is bounded by its streams and its window; all
// of them together by how many there are.
const (
	maxConnections = 4096
	maxStreams     = 256       // of a connection, with a message each; Envoy has one for each of its threads, and opens more
	streamWindow   = 64 << 10  // bytes that may be on their way to a stream
	connWindow     = 256 << 10 // and to a connection
	maxHeaders     = 16 << 10
	handshakeTime  = 5 * time.Second
	pingsEvery     = 5 * time.Second        // that clients may send
	deadAfter      = 30 * time.Second       // without an answer to a ping
	idleTime       = 30 * time.Minute       // after which a connection without a request is closed
	busy, crowded  = 1 << 10, 16 << 10      // goroutines: a stream has one, and with it takes 12 KiB
	streamTime     = 10 * time.Second       // in which a request must have arrived and been answered on a busy node
	crowdedTime    = 100 * time.Millisecond // and on a crowded one
	maxWatches     = maxConnections         // streams without an end, all together: one of health for each connection
)

// Server is a gRPC server with the rate limit service, the authorization service and the standard health service.
type Server struct {
	*grpc.Server
	health  *health.Server
	decides func() bool        // the authorization service can; nil without one
	end     context.CancelFunc // of streams that have no end of their own
	conns   bounded
}

// ServerOptions of a Server.
type ServerOptions struct {
	// Reflection tells clients which services there are.
	Reflection bool
	// Guard decides which callers may use the service, by the metadata authorization. Health is for everybody. Nil, and a guard
	// that asks for no token, let all in.
	Guard *guard.Guard
	// Gateways decides what Envoy asks the authorization service (ext_authz). Nil means that there is none.
	Gateways *forwardauth.Handler
	// GatewaysReady says whether it can decide: it needs rules, and no configuration. Nil means that it always can.
	GatewaysReady func() bool
	// Trace returns a context in the caller's trace, by the W3C trace context of a request's metadata. Nil means that there are no
	// traces.
	Trace func(ctx context.Context, traceparent, tracestate string) context.Context
	// MaxConnectionAge is how long a connection may last; 0 means 24 hours. MaxConnectionAgeGrace is how long requests may take that
	// are in flight then; 0 means 10 seconds.
	MaxConnectionAge, MaxConnectionAgeGrace time.Duration
}

// NewServer makes a gRPC server. TLS is its listener's concern.
func NewServer(s *Service, o ServerOptions) *Server {
	if o.MaxConnectionAge <= 0 {
		o.MaxConnectionAge = 24 * time.Hour
	}
	if o.MaxConnectionAgeGrace <= 0 {
		o.MaxConnectionAgeGrace = streamTime
	}
	running, end := context.WithCancel(context.Background())
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.InitialWindowSize(streamWindow), // fixed: estimated ones grow to megabytes
		grpc.InitialConnWindowSize(connWindow),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.InTapHandle(inTime),
		grpc.NumStreamWorkers(maxStreams), // goroutines that stay: a new one for each request spends a fifth of its time on a larger stack
		grpc.ChainStreamInterceptor(fewWatches(running)),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsEvery, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: idleTime, MaxConnectionAge: o.MaxConnectionAge, MaxConnectionAgeGrace: o.MaxConnectionAgeGrace,
			Time: deadAfter, Timeout: deadAfter,
		}),
	}
	options = append(options, grpc.ChainUnaryInterceptor(s.survive))
	if o.Guard != nil && o.Guard.Asks() {
		options = append(options, grpc.ChainUnaryInterceptor(admitted(o.Guard)))
	}
	if o.Trace != nil {
		options = append(options, grpc.ChainUnaryInterceptor(traced(o.Trace)))
	}
	g := grpc.NewServer(options...)
	out := &Server{Server: g, health: health.NewServer(), end: end}
	rls.RegisterRateLimitServiceServer(g, s)
	if o.Gateways != nil {
		auth.RegisterAuthorizationServer(g, &authorization{gateways: o.Gateways})
		if out.decides = o.GatewaysReady; out.decides == nil {
			out.decides = func() bool { return true }
		}
	}
	healthpb.RegisterHealthServer(g, out.health)
	out.tell(true)
	if o.Reflection {
		reflection.Register(g)
	}
	return out
}

// survive answers a request that panics with INTERNAL, and logs the panic. net/http recovers by itself; gRPC would end the node.
func (s *Service) survive(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (_ any, err error) {
	defer func() {
		if r := recover(); r != nil {
			s.opts.Logger.Error("a request panicked", "method", info.FullMethod, "panic", r, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "this request could not be decided: the node's log says why")
		}
	}()
	return handle(ctx, req)
}

// inTime sets a deadline for a stream when its headers arrive. Without one, gRPC waits for the message for as long as the caller
// likes, and a caller could hold hundreds of silent streams on each connection. The busier the node, the shorter the deadline.
// A request that arrives in one piece, as Envoy's do, never notices it.
func inTime(ctx context.Context, call *tap.Info) (context.Context, error) {
	n, most := runtime.NumGoroutine(), streamTime
	switch {
	case n <= busy || endless(call.FullMethodName):
		return ctx, nil
	case n > crowded:
		most = crowdedTime
	}
	if d, ok := ctx.Deadline(); ok && time.Until(d) <= most {
		return ctx, nil
	}
	timed, cancel := context.WithTimeout(ctx, most)
	_ = cancel // the stream's own end frees the timer
	return &bound{timed, ctx}, nil
}

// bound is the context of a request whose time the server has bounded. Its deadline is still the caller's: the store's time comes from it.
type bound struct {
	context.Context
	caller context.Context
}

func (b *bound) Deadline() (time.Time, bool) { return b.caller.Deadline() }

// endless reports whether calls of a method go on until the caller ends them.
func endless(method string) bool {
	return method == healthpb.Health_Watch_FullMethodName || strings.HasPrefix(method, "/grpc.reflection.")
}

// fewWatches bounds the calls that have no end, and ends them when running does: a server that drains would wait for them.
func fewWatches(running context.Context) grpc.StreamServerInterceptor {
	var open atomic.Int64
	return func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		defer open.Add(-1)
		if open.Add(1) > maxWatches {
			return status.Errorf(codes.ResourceExhausted, "this node has %d such streams already: ask with Health/Check, or another node", maxWatches)
		}
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		defer context.AfterFunc(running, cancel)()
		return handle(server, &watched{stream, ctx})
	}
}

// watched is a stream that ends with its context.
type watched struct {
	grpc.ServerStream
	ctx context.Context
}

func (w *watched) Context() context.Context { return w.ctx }

// admitted lets in callers that the guard lets in over HTTP.
func admitted(g *guard.Guard) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if _, health := info.Server.(*health.Server); !health {
			r := &http.Request{Header: http.Header{"Authorization": metadata.ValueFromIncomingContext(ctx, "authorization")}}
			if from, ok := peer.FromContext(ctx); ok {
				r.RemoteAddr = from.Addr.String()
			}
			if _, refused := g.Admit(r); refused != nil {
				return nil, status.Error(codes.Unauthenticated, refused.Message)
			}
		}
		return handle(ctx, req)
	}
}

// traced puts requests into their callers' traces.
func traced(trace func(ctx context.Context, traceparent, tracestate string) context.Context) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if parent := metadata.ValueFromIncomingContext(ctx, "traceparent"); len(parent) > 0 {
			state := append(metadata.ValueFromIncomingContext(ctx, "tracestate"), "")
			ctx = trace(ctx, parent[0], state[0])
		}
		return handle(ctx, req)
	}
}

// Serve answers until the listener is closed.
func (s *Server) Serve(l net.Listener) error {
	s.conns.Listener = l
	return s.Server.Serve(&s.conns)
}

// tellEvery is how often Follow looks.
const tellEvery = 250 * time.Millisecond

// Follow tells those who look at the server's health whether it is ready, until ctx is done: then it drains.
func (s *Server) Follow(ctx context.Context, ready func() bool) error {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		s.tell(ready())
		select {
		case <-ctx.Done():
			s.Drain()
			return nil
		case <-tick.C:
		}
	}
}

func (s *Server) tell(ready bool) {
	set := func(name string, ready bool) {
		status := healthpb.HealthCheckResponse_SERVING
		if !ready {
			status = healthpb.HealthCheckResponse_NOT_SERVING
		}
		s.health.SetServingStatus(name, status)
	}
	for _, name := range []string{"", "ratelimit", rls.RateLimitService_ServiceDesc.ServiceName} {
		set(name, ready)
	}
	if s.decides != nil {
		set(auth.Authorization_ServiceDesc.ServiceName, s.decides())
	}
}

// Drain tells those who look at the server's health that it is about to end.
func (s *Server) Drain() { s.health.Shutdown() }

// lastHandshake is how long connections have to finish their handshake once the listener is closed.
const lastHandshake = 250 * time.Millisecond

// Shutdown lets requests in flight finish. When ctx is done, it ends the rest. Clients that watch its health have heard the last
// of it. Connections whose client never spoke end after lastHandshake: gRPC alone would wait handshakeTime for them, and drop
// those that it has only just accepted.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	s.end()
	s.conns.hurry(time.Now().Add(lastHandshake))
	for s.conns.greeting() && ctx.Err() == nil {
		time.Sleep(5 * time.Millisecond)
	}
	done := make(chan struct{})
	go func() {
		s.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.Stop()
		<-done
		return ctx.Err()
	}
}

// bounded is a listener that closes connections beyond maxConnections at once: those that are open go on.
type bounded struct {
	net.Listener
	open atomic.Int64

	mu    sync.Mutex            // guards the rest
	fresh map[*counted]struct{} // connections whose handshake isn't over
	until time.Time             // when it must be over; zero means whenever gRPC says
}

// Accept waits for the next connection.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if b.open.Add(1) > maxConnections {
			b.open.Add(-1)
			c.Close()
			continue
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.fresh == nil {
			b.fresh = map[*counted]struct{}{}
		}
		counted := &counted{Conn: c, listener: b}
		b.fresh[counted] = struct{}{}
		return counted, nil
	}
}

// hurry bounds the time of handshakes.
func (b *bounded) hurry(until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = until
	for c := range b.fresh {
		_ = c.Conn.SetDeadline(until)
	}
}

// greeting reports whether there are connections whose handshake isn't over.
func (b *bounded) greeting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.fresh) > 0
}

// counted is a connection that is counted while it is open.
type counted struct {
	net.Conn
	listener *bounded
	closed   atomic.Bool
}

// SetDeadline sets a deadline. gRPC calls it before the handshake, and with zero after it.
func (c *counted) SetDeadline(t time.Time) error {
	b := c.listener
	b.mu.Lock()
	defer b.mu.Unlock()
	if t.IsZero() {
		delete(b.fresh, c)
	} else if !b.until.IsZero() {
		t = b.until
	}
	return c.Conn.SetDeadline(t)
}

// Close closes the connection.
func (c *counted) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		b := c.listener
		b.open.Add(-1)
		b.mu.Lock()
		delete(b.fresh, c)
		b.mu.Unlock()
	}
	return c.Conn.Close()
}
