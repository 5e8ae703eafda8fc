package envoy_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weirhq/weir/internal/envoy"
	"github.com/weirhq/weir/memstore"
)

// TestHealthFollows: clients are told that a node isn't ready, that it is, and that it ends.
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
	<-looked // what the first look said has been told by now
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
}
