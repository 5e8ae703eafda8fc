package tracing_test

import (
	"context"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/tracing"
)

// A check in this process without a trace, with a trace that isn't sampled, and with one that is.
func BenchmarkCheck(b *testing.B) {
	provider := func(s sdktrace.Sampler) func(context.Context) (context.Context, func(*weir.Observation)) {
		p := sdktrace.NewTracerProvider(sdktrace.WithSampler(s), sdktrace.WithBatcher(tracetest.NewNoopExporter()))
		b.Cleanup(func() { _ = p.Shutdown(context.Background()) })
		return tracing.New(p).Check
	}
	rules := compile(b, weir.Rule{ID: "api", Limits: []weir.Limit{weir.PerSecond(1_000_000)}})
	for _, c := range []struct {
		name string
		opts weir.Options
	}{
		{"traces=off", weir.Options{}},
		{"traces=unsampled", weir.Options{Trace: provider(sdktrace.NeverSample())}},
		{"traces=sampled", weir.Options{Trace: provider(sdktrace.AlwaysSample())}},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := weir.NewLimiter(memstore.New(memstore.Options{}), rules, c.opts)
			req := &weir.Request{APIKey: "sk_prod_1", Method: "GET", Path: "/v1/orders"}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = l.Check(b.Context(), req)
			}
		})
	}
}
