package envoy

import (
	"cmp"
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

// Limits of a server.
const (
	maxConnections = 4096
	maxStreams     = 256       // per connection; Envoy opens one connection per thread
	streamWindow   = 64 << 10  // bytes in flight per stream
	connWindow     = 256 << 10 // bytes in flight per connection
	maxHeaders     = 16 << 10
	handshakeTime  = 5 * time.Second
	pingsEvery     = 5 * time.Second        // time between pings to clients
	deadAfter      = 30 * time.Second       // time without a response to a ping before a connection is closed
	idleTime       = 30 * time.Minute       // time without a request before a connection is closed
	busy, crowded  = 1 << 10, 16 << 10      // number of goroutines; a stream needs one goroutine, and 12 KiB
	streamTime     = 10 * time.Second       // how long a request may take to arrive and be answered on a busy node
	crowdedTime    = 100 * time.Millisecond // the same on a crowded node
	maxWatches     = maxConnections         // endless streams on all connections together: enough for one health watch on each connection
)

// Server is a gRPC server with the rate limit service, the authorization service and the standard
// health service.
type Server struct {
	*grpc.Server
	health  *health.Server
	decides func() bool        // reports whether the authorization service can decide; nil if the service isn't offered
	end     context.CancelFunc // ends endless streams
	conns   bounded
}

// ServerOptions are the options of a Server.
type ServerOptions struct {
	// Reflection lets clients list the services.
	Reflection bool
	// Guard admits callers by the metadata field authorization. Health checks are open to all callers. If Guard is nil
	// or requires no token, all callers are admitted.
	Guard *guard.Guard
	// Gateways decides the requests of the authorization service (ext_authz). If nil, this service isn't offered.
	Gateways *forwardauth.Handler
	// GatewaysReady reports whether Gateways can decide. If nil, it always can.
	GatewaysReady func() bool
	// Trace returns a context that continues the caller's trace, which W3C's metadata describes. If nil, requests
	// aren't traced.
	Trace func(ctx context.Context, traceparent, tracestate string) context.Context
	// MaxConnectionAge is how long a connection may last. MaxConnectionAgeGrace is how much longer requests in flight
	// may take then. If zero, they are 24 hours and 10 seconds.
	MaxConnectionAge, MaxConnectionAgeGrace time.Duration
}

// NewServer creates a gRPC server. For TLS, its listener must do the handshakes.
func NewServer(s *Service, o ServerOptions) *Server {
	running, end := context.WithCancel(context.Background())
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.InitialWindowSize(streamWindow), // fixed, because adaptive windows grow to megabytes
		grpc.InitialConnWindowSize(connWindow),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.InTapHandle(inTime),
		grpc.NumStreamWorkers(maxStreams), // if each request had a new goroutine, it would spend a fifth of its time growing the stack
		grpc.ChainStreamInterceptor(fewWatches(running)),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsEvery, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: idleTime, Time: deadAfter, Timeout: deadAfter,
			MaxConnectionAge:      cmp.Or(max(0, o.MaxConnectionAge), 24*time.Hour),
			MaxConnectionAgeGrace: cmp.Or(max(0, o.MaxConnectionAgeGrace), streamTime),
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
	out := &Server{Server: g, health: health.NewServer(), end: end, conns: bounded{open: map[*counted]bool{}}}
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

// survive turns a panic into the error INTERNAL. With net/http, a panic ends only the request, but gRPC would let it
// end the process.
func (s *Service) survive(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (_ any, err error) {
	defer func() {
		if r := recover(); r != nil {
			s.opts.Logger.Error("a request panicked", "method", info.FullMethod, "panic", r, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "this request could not be decided: the node's log says why")
		}
	}()
	return handle(ctx, req)
}

// inTime sets a deadline for a stream when its headers arrive. The busier the node, the shorter the deadline. Without
// it, a caller could keep hundreds of silent streams open per connection. Requests that arrive as a whole, as Envoy's
// do, aren't affected.
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
	_ = cancel // the timer stops when the stream ends
	return &bound{timed, ctx}, nil
}

// bound is the context of a request for which inTime has set a deadline. Its method Deadline still returns the caller's
// deadline, from which the store's time is computed.
type bound struct {
	context.Context
	caller context.Context
}

func (b *bound) Deadline() (time.Time, bool) { return b.caller.Deadline() }

func endless(method string) bool {
	return method == healthpb.Health_Watch_FullMethodName || strings.HasPrefix(method, "/grpc.reflection.")
}

// fewWatches limits the number of endless calls. When running is done, it cancels them, so that draining doesn't wait
// for them.
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

type watched struct {
	grpc.ServerStream
	ctx context.Context
}

func (w *watched) Context() context.Context { return w.ctx }

// admitted admits the same callers as the guard does over HTTP.
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

func traced(trace func(ctx context.Context, traceparent, tracestate string) context.Context) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if parent := metadata.ValueFromIncomingContext(ctx, "traceparent"); len(parent) > 0 {
			state := append(metadata.ValueFromIncomingContext(ctx, "tracestate"), "")
			ctx = trace(ctx, parent[0], state[0])
		}
		return handle(ctx, req)
	}
}

// Serve serves connections until the listener is closed.
func (s *Server) Serve(l net.Listener) error {
	s.conns.Listener = l
	return s.Server.Serve(&s.conns)
}

const tellEvery = 250 * time.Millisecond

// Follow updates the health service with the server's state. When ctx is done, it drains the server.
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
	states := map[string]bool{"": ready, "ratelimit": ready, rls.RateLimitService_ServiceDesc.ServiceName: ready}
	if s.decides != nil {
		states[auth.Authorization_ServiceDesc.ServiceName] = s.decides()
	}
	for name, ready := range states {
		status := healthpb.HealthCheckResponse_SERVING
		if !ready {
			status = healthpb.HealthCheckResponse_NOT_SERVING
		}
		s.health.SetServingStatus(name, status)
	}
}

// Drain tells health checks that the server is about to stop.
func (s *Server) Drain() { s.health.Shutdown() }

// lastHandshake is how long handshakes may still take after the listener is closed.
const lastHandshake = 250 * time.Millisecond

// Shutdown waits for requests in flight, and cancels those that remain when ctx is done. It closes connections whose
// handshake isn't complete after lastHandshake. gRPC alone would wait handshakeTime for them, and would drop
// connections that it has just accepted.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	s.end()
	for until := time.Now().Add(lastHandshake); s.conns.hurry(until) && ctx.Err() == nil; {
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

// bounded is a listener that accepts at most maxConnections at a time. It immediately closes connections beyond that
// number.
type bounded struct {
	net.Listener

	mu    sync.Mutex        // guards the fields below
	open  map[*counted]bool // true for a connection whose handshake isn't complete
	until time.Time         // deadline of handshakes; zero means that gRPC's own deadline applies
}

// Accept waits for the next connection.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := (&counted{conn, b}); b.enter(c) {
			return c, nil
		}
		conn.Close()
	}
}

func (b *bounded) enter(c *counted) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.open) == maxConnections {
		return false
	}
	b.open[c] = true
	return true
}

// hurry sets a deadline for handshakes, and reports whether any connection is still in its handshake.
func (b *bounded) hurry(until time.Time) (greeting bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = until
	for c, fresh := range b.open {
		if fresh {
			greeting = true
			_ = c.Conn.SetDeadline(until)
		}
	}
	return greeting
}

type counted struct {
	net.Conn
	listener *bounded
}

// SetDeadline sets a deadline. gRPC calls it before the handshake, and again, with the zero time, after it.
func (c *counted) SetDeadline(t time.Time) error {
	b := c.listener
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case t.IsZero() && b.open[c]:
		b.open[c] = false
	case !t.IsZero() && !b.until.IsZero():
		t = b.until
	}
	return c.Conn.SetDeadline(t)
}

func (c *counted) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.open, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
