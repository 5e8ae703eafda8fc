package envoy_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/envoy"
	"github.com/weirhq/weir/server/internal/edge/forwardauth"
	"github.com/weirhq/weir/server/internal/edge/guard"
)

// TestFaultsOfTheConfigurationAreLogged checks that a fault in Envoy's configuration is logged once.
func TestFaultsOfTheConfigurationAreLogged(t *testing.T) {
	b := newAuthNode(t, authRules, httplimit.Options{}, envoy.ServerOptions{})
	for range 3 {
		b.overGRPC(t, &auth.CheckRequest{})
	}
	if text := b.log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "attributes.source.address") {
		t.Error(text)
	}
}

// TestRefusalsWithTheOperatorsTemplate checks the operator's own refusal: a status that Envoy's enumeration lacks, and a body
// that isn't valid UTF-8.
func TestRefusalsWithTheOperatorsTemplate(t *testing.T) {
	for status, want := range map[int]int{503: 503, 420: 429} {
		b := newAuthNode(t, weir.Rules{Rules: []weir.Rule{{ID: "r", Algorithm: weir.FixedWindow, Limits: aYear(1)}}}, httplimit.Options{Answers: httplimit.Answers{
			Refusal: httplimit.Template{Status: status, ContentType: "text/html", Body: "<p>{{.Rule}}\xff"},
		}}, envoy.ServerOptions{})
		one := authQuestion{"GET", "/", "a", "203.0.113.7", nil}.joined()
		b.overGRPC(t, one)
		if got := b.overGRPC(t, one); got.status != want || got.body != "<p>r\ufffd" || got.headers["Content-Type"] != "text/html" {
			t.Errorf("%d: %+v", status, got)
		}
	}
}

// TestChecksAreShed checks that an overloaded node sheds ext_authz checks with an error, not a refusal, like requests
// to the rate limit service.
func TestChecksAreShed(t *testing.T) {
	store := &stalled{Store: memstore.New(memstore.Options{}), inside: make(chan struct{}, 1), release: make(chan struct{})}
	set, err := weir.Compile(authRules)
	if err != nil {
		t.Fatal(err)
	}
	var told atomic.Int64
	l := weir.NewLimiter(store, set, weir.Options{Observe: func(o *weir.Observation) {
		if o.Decision.Reason == weir.ReasonOverloaded && o.Request.Edge == "extauthz" {
			told.Add(1)
		}
	}})
	gateways := forwardauth.New(l, forwardauth.Options{Limit: httplimit.Options{MaxInFlight: 1}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := envoy.NewServer(envoy.New(l, envoy.Options{}), envoy.ServerOptions{Gateways: gateways})
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	client := auth.NewAuthorizationClient(connect(t, listener))
	req := authQuestion{"GET", "/", "a", "203.0.113.7", nil}.joined()
	first := make(chan error, 1)
	go func() {
		_, err := client.Check(context.Background(), req)
		first <- err
	}()
	<-store.inside
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the check waits for only a second of this
	defer cancel()
	if _, err := client.Check(ctx, req); status.Code(err) != codes.Unavailable || told.Load() != 1 {
		t.Error(err, told.Load())
	}
	close(store.release)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// TestQueuesHoldTheAnswer checks that a queued request is held for as long as the caller's deadline allows, and refused
// if its turn comes later.
func TestQueuesHoldTheAnswer(t *testing.T) {
	b := newAuthNode(t, weir.Rules{Rules: []weir.Rule{{ID: "q", Algorithm: weir.LeakyQueue, Limits: []weir.Limit{{Count: 20, Window: time.Second}}, MaxDelay: time.Hour}}}, httplimit.Options{}, envoy.ServerOptions{})
	req := authQuestion{"GET", "/", "a", "203.0.113.7", nil}.joined()
	begun := time.Now()
	for range 3 {
		if got := b.overGRPC(t, req); got.status != 200 {
			t.Errorf("%+v", got)
		}
	}
	if waited := time.Since(begun); waited < 90*time.Millisecond {
		t.Errorf("three turns of 50 ms came in %s", waited)
	}
	slow := newAuthNode(t, weir.Rules{Rules: []weir.Rule{{ID: "q", Algorithm: weir.LeakyQueue, Limits: []weir.Limit{{Count: 2, Window: time.Hour}}, MaxDelay: time.Hour}}}, httplimit.Options{}, envoy.ServerOptions{})
	slow.overGRPC(t, req)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the request's turn comes in half an hour
	defer cancel()
	res, err := slow.Check(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if got := unpack(t, res); got.status != 503 || !strings.Contains(got.body, "QUEUE_TIMEOUT") {
		t.Errorf("%+v", got)
	}
}

// TestTheTokenIsAskedForByBoth checks that both services require the token in the same metadata. The health service
// knows both.
func TestTheTokenIsAskedForByBoth(t *testing.T) {
	tokens, err := guard.OneToken("http", "a-good-token-0123456789")
	if err != nil {
		t.Fatal(err)
	}
	b := newAuthNode(t, authRules, httplimit.Options{}, envoy.ServerOptions{Guard: guard.New(guard.Options{Tokens: tokens})})
	req := authQuestion{"GET", "/", "a", "203.0.113.7", [][2]string{{"Authorization", "Bearer a-good-token-0123456789"}}}.joined()
	if _, err := b.Check(t.Context(), req); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a client's token passes for Envoy's: %v", err)
	}
	if _, err := b.Check(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer a-good-token-0123456789"), req); err != nil {
		t.Error(err)
	}
}

// TestHealthOfEachService checks that each service is ready on its own: one doesn't wait for what the other still
// lacks.
func TestHealthOfEachService(t *testing.T) {
	for _, c := range []struct{ limits, gateways bool }{{true, false}, {false, true}} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		limiter := weir.NewLimiter(memstore.New(memstore.Options{}), nil, weir.Options{})
		server := envoy.NewServer(envoy.New(limiter, envoy.Options{}), envoy.ServerOptions{
			Gateways: forwardauth.New(limiter, forwardauth.Options{}), GatewaysReady: func() bool { return c.gateways },
		})
		go server.Serve(l)
		t.Cleanup(server.Stop)
		looked := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		followed := make(chan error, 1)
		go func() {
			followed <- server.Follow(ctx, func() bool {
				select {
				case looked <- struct{}{}:
				case <-ctx.Done():
				}
				return c.limits
			})
		}()
		<-looked
		<-looked // by now, the result of the first look is in force
		client := healthpb.NewHealthClient(connect(t, l))
		for name, ready := range map[string]bool{"": c.limits, "ratelimit": c.limits, "envoy.service.auth.v3.Authorization": c.gateways} {
			got, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
			if err != nil || ready != (got.Status == healthpb.HealthCheckResponse_SERVING) {
				t.Errorf("%+v, %q: %v %v", c, name, got, err)
			}
		}
		cancel()
		if err := <-followed; err != nil {
			t.Error(err)
		}
	}
}

func TestHealthKnowsBothServices(t *testing.T) {
	client := newAuthNode(t, authRules, httplimit.Options{}, envoy.ServerOptions{}).health
	for _, name := range []string{"", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService", "envoy.service.auth.v3.Authorization"} {
		if got, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name}); err != nil || got.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v %v", name, got, err)
		}
	}
}
