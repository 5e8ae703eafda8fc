package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extauthz "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weirhq/weir/server/test/oteltest"
)

// envoysQuestion returns Envoy's gRPC request about an HTTP request from 203.0.113.7.
func envoysQuestion(method, target string, headers map[string]string) *auth.CheckRequest {
	return &auth.CheckRequest{Attributes: &auth.AttributeContext{
		Source: &auth.AttributeContext_Peer{Address: &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
			Address: "203.0.113.7", PortSpecifier: &core.SocketAddress_PortValue{PortValue: 999},
		}}}},
		Request: &auth.AttributeContext_Request{Http: &auth.AttributeContext_HttpRequest{Method: method, Path: target, Host: "shop.example", Headers: headers}},
	}}
}

// extAuthz returns a filter from a YAML block of the guide to ext_authz.
func extAuthz(t *testing.T, block int) *extauthz.ExtAuthz {
	t.Helper()
	var conf struct {
		Filters []struct {
			Config map[string]any `yaml:"typed_config"`
		} `yaml:"http_filters"`
	}
	if err := yaml.Unmarshal([]byte(fences(t, "../docs/guides/envoy-ext-authz.md", "yaml")[block]), &conf); err != nil {
		t.Fatal(err)
	}
	filter := conf.Filters[0].Config
	delete(filter, "@type")
	text, err := json.Marshal(filter)
	if err != nil {
		t.Fatal(err)
	}
	var authz extauthz.ExtAuthz
	if err := protojson.Unmarshal(text, &authz); err != nil {
		t.Fatal(err)
	}
	if err := authz.ValidateAll(); err != nil {
		t.Fatal(err)
	}
	return &authz
}

// The gRPC filter in the guide is valid for Envoy. With a fixed window of 100 a day, exactly 100 of 500 requests are
// admitted and 400 refused, with the right headers. The same request over HTTP uses the same counter.
func TestEnvoysExtAuthzOverGRPC(t *testing.T) {
	t.Parallel()
	filter := extAuthz(t, 1)
	if filter.GetGrpcService().GetEnvoyGrpc() == nil || !filter.EncodeRawHeaders || filter.GetWithRequestBody() != nil {
		t.Errorf("the page has %v", filter)
	}
	initial := filter.GetGrpcService().GetInitialMetadata()
	if len(initial) != 1 {
		t.Fatalf("the page sends %v", initial)
	}
	token := strings.TrimPrefix(initial[0].Value, "Bearer ")
	n := serve(t, "--rules", write(t, filepath.Join(t.TempDir(), "rules.yaml"), askedRules), "--http-token", token)
	client := auth.NewAuthorizationClient(dialEnvoy(t, n.GRPC, insecure.NewCredentials()))
	key := fmt.Sprint("k", time.Now().UTC().Day())
	question := envoysQuestion("GET", "/window", map[string]string{"x-api-key": key, ":path": "/window"})
	if _, err := client.Check(t.Context(), question); grpcstatus.Code(err) != codes.Unauthenticated {
		t.Errorf("without the token: %v", err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), initial[0].Key, initial[0].Value)
	var admitted, refused atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 125 {
				res, err := client.Check(ctx, question)
				if err != nil {
					t.Error(err)
					return
				}
				list := res.GetOkResponse().GetResponseHeadersToAdd()
				if denied := res.GetDeniedResponse(); denied == nil {
					admitted.Add(1)
				} else if list = denied.Headers; int(denied.Status.Code) == http.StatusTooManyRequests && strings.Contains(denied.Body, "RATE_LIMIT_EXCEEDED") {
					refused.Add(1)
				}
				if !slices.ContainsFunc(list, func(h *core.HeaderValueOption) bool {
					return h.Header.Key == "X-Ratelimit-Limit" && h.Header.Value == "100"
				}) {
					t.Errorf("headers are %v", list)
				}
			}
		})
	}
	all.Wait()
	if key != fmt.Sprint("k", time.Now().UTC().Day()) {
		return // the window ended during the test
	}
	if admitted.Load() != 100 || refused.Load() != 400 {
		t.Errorf("%d were admitted, %d refused", admitted.Load(), refused.Load())
	}
	if res, _ := call(t, "GET", n.HTTP+"/check/envoy/window", "", "X-API-Key: "+key, "X-Real-IP: 203.0.113.7", "X-Weir-Token: "+token); res.StatusCode != 429 {
		t.Errorf("over HTTP: %d", res.StatusCode)
	}
	_, metrics := call(t, "GET", n.Admin+"/metrics", "")
	for _, want := range []string{
		`weir_decisions_total{edge="extauthz",outcome="allowed",reason="within",rule="window"} 100`,
		`weir_decisions_total{edge="extauthz",outcome="refused",reason="limited",rule="window"} 401`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// TestTracesOverGRPC checks that Envoy's requests to both services join the caller's trace, and that an invalid
// traceparent starts a new trace.
func TestTracesOverGRPC(t *testing.T) {
	c := oteltest.HTTP(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	n := serve(t, "--rules", write(t, filepath.Join(t.TempDir(), "rules.yaml"), askedRules))
	conn := dialEnvoy(t, n.GRPC, insecure.NewCredentials())
	const parent = "00f067aa0ba902b7"
	trace := func(i int) string { return fmt.Sprintf("4bf92f3577b34da6a3ce929d0e0e47%02x", i) }
	for i, flag := range []string{"01", "00", "nonsense"} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+trace(i)+"-"+parent+"-"+flag, "tracestate", "vendor=x")
		for _, ask := range []func(context.Context) error{
			func(ctx context.Context) error { _, err := shouldLimit(ctx, conn, "path", "/window"); return err },
			func(ctx context.Context) error {
				_, err := auth.NewAuthorizationClient(conn).Check(ctx, envoysQuestion("GET", "/window", nil))
				return err
			},
		} {
			if err := ask(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.stop()
	if err := <-n.exited; err != nil {
		t.Fatal(err)
	}
	edges, others := map[string]int{}, 0
	for _, s := range c.Received().Spans {
		switch {
		case s.Trace() == trace(0) && s.Name == "weir.check" && s.Parent() == parent && s.TraceState == "vendor=x":
			edges[s.Attributes["weir.edge"]]++
		case strings.HasPrefix(s.Trace(), trace(0)[:30]):
			t.Errorf("a span that shouldn't be: %v", s)
		default:
			others++
		}
	}
	if len(edges) != 2 || edges["envoy"] != 1 || edges["extauthz"] != 1 || others != 2 {
		t.Errorf("spans of the edges: %v, and %d others", edges, others)
	}
}
