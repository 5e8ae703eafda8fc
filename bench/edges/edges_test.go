// Package edges compares the cost of a refusal with that of an admission, for every edge.
package edges

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/grpclimit"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
	"github.com/weirhq/weir/server/internal/edge/envoy"
	"github.com/weirhq/weir/server/internal/edge/forwardauth"
)

// edge asks for a decision and reports whether the request was allowed.
type edge struct {
	name string
	ask  func(key string) (allowed bool)
}

const (
	free    = "sk_free"    // a key that is always admitted
	refused = "sk_refused" // a key whose quota is used up
)

// BenchmarkEdges measures the check and the edge's own work, without the network and without the work that an admitted
// request causes. make bench-storm prints the cost of a proxied request, including its connection.
func BenchmarkEdges(b *testing.B) {
	for _, e := range all(b) {
		var admission float64 // ns
		measure := func(key string) func(*testing.B) {
			return func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if e.ask(key) != (key == free) {
						b.Fatal("an unexpected decision")
					}
				}
				ns := float64(b.Elapsed()) / float64(b.N)
				if key == free {
					admission = ns
				} else {
					b.ReportMetric(ns/admission, "×admission")
				}
			}
		}
		b.Run(e.name+"/admission", measure(free))
		b.Run(e.name+"/refusal", measure(refused))
	}
}

// all returns every edge, each with a limiter of its own in which one key has used up its limit.
func all(tb testing.TB) []edge {
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{
		ID: "api", Limits: []weir.Limit{weir.PerSecond(1_000_000_000)},
		Override: map[string][]weir.Limit{refused: {{Count: 1, Window: 365 * 24 * time.Hour}}},
	}}})
	if err != nil {
		tb.Fatal(err)
	}
	fresh := func() *weir.Limiter {
		l := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
		_, _ = l.Check(context.Background(), &weir.Request{APIKey: refused}) // a memstore never fails
		return l
	}
	library := fresh()
	answers, err := httplimit.NewAnswerer(httplimit.Answers{})
	if err != nil {
		tb.Fatal(err)
	}
	served := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	list := []edge{
		{"library", func(key string) bool {
			d, err := library.Check(context.Background(), &weir.Request{APIKey: key, Method: "GET", Path: "/v1/orders"})
			return err == nil && d.Allowed
		}},
		overHTTP("middleware", httplimit.New(fresh(), httplimit.Options{}).Wrap(served), func(key string) *http.Request {
			return request("GET", "/v1/orders", "", "X-Api-Key", key)
		}),
		overHTTP("check API", checkapi.New(fresh(), answers, checkapi.Options{}), func(key string) *http.Request {
			return request("POST", "/v1/check", `{"key": "`+key+`", "method": "GET", "path": "/v1/orders"}`, "Content-Type", "application/json")
		}),
		overHTTP("forward-auth (Caddy)", forwardauth.New(fresh(), forwardauth.Options{}), func(key string) *http.Request {
			return request("GET", "/check/caddy", "", "X-Api-Key", key, "X-Forwarded-Method", "GET", "X-Forwarded-Uri", "/v1/orders", "X-Forwarded-For", "203.0.113.7", "X-Forwarded-Host", "shop.example", "X-Forwarded-Proto", "https")
		}),
	}
	service := envoy.New(fresh(), envoy.Options{})
	list = append(list, edge{"Envoy's rate limit service", func(key string) bool {
		a, err := service.ShouldRateLimit(context.Background(), &rls.RateLimitRequest{Domain: "edge", Descriptors: []*corev3.RateLimitDescriptor{
			{Entries: []*corev3.RateLimitDescriptor_Entry{{Key: "api_key", Value: key}}},
		}})
		return err == nil && a.OverallCode == rls.RateLimitResponse_OK
	}})
	interceptors := grpclimit.New(fresh(), grpclimit.Options{})
	info := &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/List"}
	list = append(list, edge{"gRPC interceptor", func(key string) bool {
		ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7), Port: 1234}})
		ctx = grpc.NewContextWithServerTransportStream(ctx, stream{})
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(":authority", "shop.example", "x-api-key", key))
		_, err := interceptors.Unary(ctx, nil, info, func(context.Context, any) (any, error) { return nil, nil })
		return err == nil
	}})
	return list
}

// overHTTP is an edge that is an http.Handler.
func overHTTP(name string, h http.Handler, ask func(key string) *http.Request) edge {
	w := &sink{header: http.Header{}}
	return edge{name, func(key string) bool {
		w.status = http.StatusOK
		clear(w.header)
		h.ServeHTTP(w, ask(key))
		return w.status == http.StatusOK || w.status == http.StatusNoContent
	}}
}

func request(method, path, body string, headers ...string) *http.Request {
	r, err := http.NewRequest(method, "http://127.0.0.1"+path, bytes.NewReader([]byte(body)))
	if err != nil {
		panic(err) // all of these requests are valid
	}
	r.RemoteAddr = "127.0.0.1:1234"
	for i := 0; i < len(headers); i += 2 {
		r.Header[headers[i]] = headers[i+1 : i+2]
	}
	return r
}

// sink is a ResponseWriter that keeps only the status code.
type sink struct {
	header http.Header
	status int
}

func (w *sink) Header() http.Header         { return w.header }
func (w *sink) WriteHeader(status int)      { w.status = status }
func (w *sink) Write(b []byte) (int, error) { return len(b), nil }

// stream is a gRPC stream that drops everything.
type stream struct{}

func (stream) Method() string               { return "" }
func (stream) SetHeader(metadata.MD) error  { return nil }
func (stream) SendHeader(metadata.MD) error { return nil }
func (stream) SetTrailer(metadata.MD) error { return nil }
