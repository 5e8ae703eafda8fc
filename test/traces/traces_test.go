// Package traces_test has tests of traces that cross several packages.
package traces_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/grpclimit"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// traced returns a tracer, and an exporter that keeps its spans.
func traced(t testing.TB) (*tracing.Tracer, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	t.Cleanup(func() {
		if err := provider.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return tracing.New(provider), spans
}

func compile(t testing.TB, rules ...weir.Rule) *weir.RuleSet {
	t.Helper()
	set, err := weir.Compile(weir.Rules{Version: 7, Rules: rules, Deny: []string{"sk_denied"}})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// attributes returns a span's attributes as text.
func attributes(s tracetest.SpanStub) string {
	var all []string
	for _, a := range s.Attributes {
		all = append(all, fmt.Sprintf("%s=%s", a.Key, a.Value.String()))
	}
	return strings.Join(all, " ")
}

// TestSpansOfRedis checks that calls to Redis have spans below the check's span, with the shard and the error. Checks
// that aren't traced have none.
func TestSpansOfRedis(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	tracer, spans := traced(t)
	store, err := redisstore.New(redisstore.Options{URL: "redis://" + server.Addr, Trace: tracer.Call, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	rules := compile(t, weir.Rule{ID: "orders", Limits: []weir.Limit{weir.PerHour(1)}})
	l := weir.NewLimiter(store, rules, weir.Options{Trace: tracer.Check})
	if _, err := l.Check(t.Context(), &weir.Request{APIKey: "sk_1"}); err != nil {
		t.Fatal(err)
	}
	got := spans.GetSpans()
	if len(got) != 2 {
		t.Fatalf("%d spans, want 2: %v", len(got), got)
	}
	call, check := got[0], got[1]
	if call.Name != "weir.store" || call.Parent.SpanID() != check.SpanContext.SpanID() || attributes(call) != "db.system.name=redis weir.shard="+server.Addr {
		t.Errorf("the call: %v %s", call, attributes(call))
	}
	if call.StartTime.Before(check.StartTime) || call.EndTime.After(check.EndTime) || !call.EndTime.After(call.StartTime) {
		t.Errorf("a call from %s to %s, in a check from %s to %s", call.StartTime, call.EndTime, check.StartTime, check.EndTime)
	}

	untraced := weir.NewLimiter(store, rules, weir.Options{})
	spans.Reset()
	if _, err := untraced.Check(t.Context(), &weir.Request{APIKey: "sk_1"}); err != nil {
		t.Fatal(err)
	}
	if got := spans.GetSpans(); len(got) != 0 {
		t.Errorf("a check without a span has some of Redis: %v", got)
	}

	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := l.Check(gone, &weir.Request{APIKey: "sk_1"}); err == nil {
		t.Error("a check whose caller has gone was decided")
	}
	if got := spans.GetSpans()[0]; !strings.Contains(attributes(got), "error.type=canceled") {
		t.Errorf("a caller has gone: %s", attributes(got))
	}
	server.Kill()
	for last := ""; last != "error.type=unavailable"; { // until the breaker is open
		spans.Reset()
		if _, err := l.Check(t.Context(), &weir.Request{APIKey: "sk_1"}); err == nil {
			t.Fatal("a killed Redis decides")
		}
		got := spans.GetSpans()
		call, check := attributes(got[0]), attributes(got[1])
		last = call[strings.LastIndex(call, " ")+1:]
		if !strings.Contains(call, "weir.shard="+server.Addr) || last != "error.type=connection" && last != "error.type=timeout" && last != "error.type=unavailable" ||
			!strings.Contains(check, "weir.degraded=true") || got[1].Status.Description != "the store couldn't be reached" {
			t.Fatalf("Redis is killed, and the spans say %s and %s, %v", call, check, got[1].Status)
		}
	}
}

// service is a gRPC service.
type service struct {
	testgrpc.UnimplementedTestServiceServer
}

func (service) UnaryCall(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return &testgrpc.SimpleResponse{}, nil
}

// TestSpansOfGRPC checks that a check's span is part of the caller's trace.
func TestSpansOfGRPC(t *testing.T) {
	tracer, spans := traced(t)
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), compile(t), weir.Options{Trace: tracer.Check})
	limit := grpclimit.New(limiter, grpclimit.Options{Trace: tracing.Continue})
	server := grpc.NewServer(grpc.UnaryInterceptor(limit.Unary))
	testgrpc.RegisterTestServiceServer(server, service{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for _, headers := range [][]string{
		{"traceparent", "00-" + trace + "-" + parent + "-01", "tracestate", "vendor=x"},
		{"traceparent", "nonsense"},
		nil,
	} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), headers...)
		if _, err := testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, &testgrpc.SimpleRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	got := spans.GetSpans()
	if len(got) != 3 || got[0].SpanContext.TraceID().String() != trace || got[0].Parent.SpanID().String() != parent || got[0].SpanContext.TraceState().String() != "vendor=x" ||
		got[1].Parent.IsValid() || got[2].Parent.IsValid() {
		t.Errorf("spans: %v", got)
	}
}
