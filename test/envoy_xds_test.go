package test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	conf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// gatewayXDS is an xDS server that sends the responses in one channel, and passes on the client's requests in another.
type gatewayXDS struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	send chan *discovery.DiscoveryResponse
	said chan *discovery.DiscoveryRequest
}

func (x *gatewayXDS) StreamAggregatedResources(s discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		x.said <- r
		select {
		case out := <-x.send:
			if err := s.Send(out); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

// limits sends a configuration of n requests per unit for each key.
func (x *gatewayXDS) limits(t *testing.T, version string, unit conf.RateLimitUnit, n uint32) {
	t.Helper()
	res, err := anypb.New(&conf.RateLimitConfig{Name: "edge", Domain: "edge", Descriptors: []*conf.RateLimitDescriptor{
		{Key: "api_key", RateLimit: &conf.RateLimitPolicy{Unit: unit, RequestsPerUnit: n}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	x.send <- &discovery.DiscoveryResponse{VersionInfo: version, Nonce: version, TypeUrl: res.TypeUrl, Resources: []*anypb.Any{res}}
}

// TestEnvoyXDS checks that a node isn't ready before its first configuration, and that it reports where its
// configuration is from, which one it rejected, and that the server is gone.
func TestEnvoyXDS(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &gatewayXDS{send: make(chan *discovery.DiscoveryResponse), said: make(chan *discovery.DiscoveryRequest, 100)}
	server := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(server, x)
	go server.Serve(l)
	defer server.Stop()
	file := filepath.Join(t.TempDir(), "weir.yaml")
	write(t, file, "envoy: {xds: {server: \""+l.Addr().String()+"\", node: envoy-ratelimit}}\n")
	n := serve(t, "--config", file)
	conn := dialEnvoy(t, n.GRPC, insecure.NewCredentials())
	look := func(url string) (int, string) {
		t.Helper()
		answer, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body)
	}
	expect := func(when, url string, status int, parts ...string) {
		t.Helper()
		got, body := look(url)
		for _, part := range parts {
			if got != status || !strings.Contains(body, part) {
				t.Errorf("%s: %s: %d %s, want %d %s", when, url, got, body, status, part)
			}
		}
	}
	limit := func() uint32 {
		t.Helper()
		got, err := shouldLimit(t.Context(), conn, "api_key", "a")
		if err != nil {
			t.Fatal(err)
		}
		return got.Statuses[0].GetCurrentLimit().GetRequestsPerUnit()
	}
	health := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		watch, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{Service: "ratelimit"})
		for err == nil {
			var got *healthpb.HealthCheckResponse
			if got, err = watch.Recv(); err == nil && got.Status == want {
				return
			}
		}
		t.Errorf("health isn't %s: %v", want, err)
	}

	if r := <-x.said; r.GetNode().GetId() != "envoy-ratelimit" {
		t.Error(r)
	}
	if _, err := shouldLimit(t.Context(), conn, "api_key", "a"); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("before the first configuration: %v", err)
	}
	health(healthpb.HealthCheckResponse_NOT_SERVING)
	expect("before", n.Admin+"/readyz", 503, `"no configuration"`, "it may know none for the node envoy-ratelimit")
	expect("before", n.HTTP+"/readyz", 503, `"no configuration"`)
	expect("before", n.HTTP+"/healthcheck", 500, "")
	expect("before", n.Admin+"/metrics", 200, "\nweir_envoy_xds_connected 1\n", "\nweir_envoy_config_age_seconds -1\n")
	answer, err := http.Post(n.HTTP+"/json", "application/json", strings.NewReader(`{"domain": "edge", "descriptors": [{"entries": [{"key": "api_key", "value": "b"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, _ := io.ReadAll(answer.Body); answer.StatusCode != 503 || !strings.Contains(string(body), "LIMITER_UNAVAILABLE") {
		t.Errorf("%d %s", answer.StatusCode, body)
	}

	x.limits(t, "1", conf.RateLimitUnit_DAY, 7)
	if r := <-x.said; r.VersionInfo != "1" || r.ErrorDetail != nil {
		t.Fatal(r)
	}
	if l := limit(); l != 7 {
		t.Errorf("the limit is %d", l)
	}
	health(healthpb.HealthCheckResponse_SERVING)
	expect("with one", n.HTTP+"/healthcheck", 200, "OK")
	expect("with one", n.Admin+"/metrics", 200, "\nweir_envoy_config_rejected_total 0\n")

	x.limits(t, "2", 99, 8)
	if r := <-x.said; r.VersionInfo != "1" || !strings.HasPrefix(r.GetErrorDetail().GetMessage(), "edge: descriptors[0].rate_limit.unit: must be second") {
		t.Fatal(r)
	}
	expect("rejected", n.Admin+"/readyz", 200, "edge: descriptors[0].rate_limit.unit: must be second")
	expect("rejected", n.HTTP+"/readyz", 200, "newer limits of the xDS server were rejected: /readyz on the admin port says")
	expect("rejected", n.Admin+"/metrics", 200, "\nweir_envoy_config_rejected_total 1\n")

	server.Stop()
	n.await("the xDS server is lost: the configuration in force stays", func(map[string]any) bool { return true })
	if l := limit(); l != 7 {
		t.Errorf("without the server the limit is %d", l)
	}
	expect("lost", n.Admin+"/metrics", 200, "\nweir_envoy_xds_connected 0\n")
	_, body := look(n.Admin + "/readyz")
	var ready struct {
		EnvoyConfig map[string]any `json:"envoy_config"`
	}
	if err := json.Unmarshal([]byte(body), &ready); err != nil {
		t.Fatal(err)
	}
	c := ready.EnvoyConfig
	if c["source"] != l.Addr().String() || c["version"] != "1" || c["connected"] != false || c["error"] == "" || fmt.Sprint(c["domains"], c["limits"]) != "1 1" || c["since"] == nil {
		t.Error(body)
	}
	if _, body = look(n.HTTP + "/readyz"); !strings.Contains(body, `"version"`) {
		t.Error(body)
	}
}
