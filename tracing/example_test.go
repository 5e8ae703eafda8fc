package tracing_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/tracing"
)

// A program that has its own TracerProvider. If otelhttp already creates spans for requests, leave out Handler.
func Example() {
	spans := tracetest.NewInMemoryExporter() // or the exporter for your collector
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	defer provider.Shutdown(context.Background())
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "orders", Limits: []weir.Limit{weir.PerMinute(100)}}}})
	if err != nil {
		log.Fatal(err)
	}

	tracer := tracing.New(provider)
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{Trace: tracer.Check})
	limit := httplimit.New(limiter, httplimit.Options{})
	handler := tracer.Handler(limit.Wrap(http.NotFoundHandler()))

	r := httptest.NewRequest(http.MethodGet, "/v1/orders", nil)
	r.Header.Set("X-API-Key", "sk_123")
	r.Header.Set("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	handler.ServeHTTP(httptest.NewRecorder(), r)

	for _, s := range spans.GetSpans() {
		fmt.Println(s.SpanContext.TraceID(), s.Name)
	}
	// Output:
	// 4bf92f3577b34da6a3ce929d0e0e4736 weir.check
	// 4bf92f3577b34da6a3ce929d0e0e4736 GET
}
