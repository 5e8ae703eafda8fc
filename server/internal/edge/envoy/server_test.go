package envoy_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/envoy"
	"github.com/weirhq/weir/server/internal/edge/guard"
)

// TestHealthFollows checks that clients learn that a node isn't ready, is ready, and is stopping. The node doesn't wait
// for health watches when it stops.
func TestHealthFollows(t *testing.T) {
	s := newService(t, memstore.New(memstore.Options{}), envoy.Options{}, envoy.File{Name: "all.yaml", Text: []byte(everyKey)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := envoy.NewServer(s, envoy.ServerOptions{})
	go server.Serve(l)
	defer server.Stop()
	var ready atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looked := make(chan struct{}, 1)
	followed := make(chan error, 1)
	go func() {
		followed <- server.Follow(ctx, func() bool {
			select {
			case looked <- struct{}{}:
			default:
			}
			return ready.Load()
		})
	}()
	<-looked
	<-looked // by now, the result of the first look is in force
	watch, err := healthpb.NewHealthClient(connect(t, l)).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "envoy.service.ratelimit.v3.RateLimitService"})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		want healthpb.HealthCheckResponse_ServingStatus
		then func()
	}{
		{healthpb.HealthCheckResponse_NOT_SERVING, func() { ready.Store(true) }},
		{healthpb.HealthCheckResponse_SERVING, cancel},
		{healthpb.HealthCheckResponse_NOT_SERVING, func() {}},
	} {
		if got, err := watch.Recv(); err != nil || got.Status != step.want {
			t.Fatal(got, err, step.want)
		}
		step.then()
	}
	if err := <-followed; err != nil {
		t.Error(err)
	}
	patience, enough := context.WithTimeout(t.Context(), 10*time.Second)
	defer enough()
	if err := server.Shutdown(patience); err != nil {
		t.Error("a server's stop waits for health watches:", err)
	}
	if got, err := watch.Recv(); err == nil {
		t.Error("a watch of a stopped server received", got)
	}
}

// TestAToken checks that nobody can use up a client's limit without the token, and that health checks need none.
func TestAToken(t *testing.T) {
	tokens, err := guard.OneToken("http", "a-good-token-0123456789")
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, memstore.New(memstore.Options{}), envoy.Options{}, envoy.File{Name: "all.yaml", Text: []byte(everyKey)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := envoy.NewServer(s, envoy.ServerOptions{Guard: guard.New(guard.Options{Tokens: tokens})})
	go server.Serve(l)
	defer server.Stop()
	conn := connect(t, l)
	req := &rls.RateLimitRequest{Domain: "d", Descriptors: []*ratelimit.RateLimitDescriptor{{}}}
	for token, want := range map[string]codes.Code{
		"": codes.Unauthenticated, "Bearer wrong": codes.Unauthenticated, "a-good-token-0123456789": codes.Unauthenticated, "Bearer a-good-token-0123456789": codes.OK,
	} {
		ctx := t.Context()
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", token)
		}
		if _, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, req); status.Code(err) != want {
			t.Errorf("%q: %v, want %v", token, err, want)
		}
	}
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
}

// TestPanicEndsARequestAlone checks that a panic ends only its request, and that the caller doesn't see the panic's
// text.
func TestPanicEndsARequestAlone(t *testing.T) {
	s := newService(t, memstore.New(memstore.Options{}), envoy.Options{Logger: slog.New(slog.DiscardHandler)}, envoy.File{Name: "all.yaml", Text: []byte(everyKey)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := envoy.NewServer(s, envoy.ServerOptions{Trace: func(context.Context, string, string) context.Context { panic("secret") }})
	go server.Serve(l)
	defer server.Stop()
	client := rls.NewRateLimitServiceClient(connect(t, l))
	ask := &rls.RateLimitRequest{Domain: "d", Descriptors: []*ratelimit.RateLimitDescriptor{{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}}}}}
	_, err = client.ShouldRateLimit(metadata.AppendToOutgoingContext(t.Context(), "traceparent", "x"), ask)
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
	if _, err := client.ShouldRateLimit(t.Context(), ask); err != nil {
		t.Error("the next request:", err)
	}
}
