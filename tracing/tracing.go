// Package tracing makes OpenTelemetry spans of decisions. Two lines give a program that embeds Weir,
// and has a TracerProvider, the spans that `weir serve` sends:
//
//	tracer := tracing.New(otel.GetTracerProvider())
//	limiter := weir.NewLimiter(store, rules, weir.Options{Trace: tracer.Check})
//
// A check's span is a child of the span in its context, such as that of otelhttp or of [Tracer.Handler]. With [Tracer.Call] in
// redisstore.Options, each wait for Redis is a span below the check's.
//
// Spans hold rule ids, outcomes, reasons, edges and shards, never a client's key, address, path or query.
// docs/guides/opentelemetry.md lists every attribute.
package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/observer"
)

// name is the instrumentation scope of all spans.
const name = "github.com/weirhq/weir/tracing"

// Tracer makes spans. Make one with [New].
type Tracer struct{ tracer trace.Tracer }

// New makes a Tracer whose spans go where the provider sends them.
func New(p trace.TracerProvider) *Tracer { return &Tracer{p.Tracer(name)} }

// Check begins the span of a decision. It is for [weir.Options.Trace].
func (t *Tracer) Check(ctx context.Context) (context.Context, func(*weir.Observation)) {
	kind := trace.SpanKindInternal
	if trace.SpanContextFromContext(ctx).IsRemote() {
		kind = trace.SpanKindServer // the caller's span is in another process, and no other of this one is above
	}
	ctx, span := t.tracer.Start(ctx, "weir.check", trace.WithSpanKind(kind))
	if !span.IsRecording() {
		return ctx, nil
	}
	return ctx, func(o *weir.Observation) { end(span, o) }
}

func end(span trace.Span, o *weir.Observation) {
	// The values are those of the metrics' labels.
	d := o.Decision
	span.SetAttributes(
		attribute.String("weir.outcome", observer.Outcome(d.Allowed)), attribute.String("weir.reason", observer.Reason(d.Reason)), attribute.String("weir.edge", observer.Edge(o.Request.Edge)),
		attribute.Int64("weir.rules_version", d.RulesVersion), attribute.Bool("weir.degraded", d.Degraded),
	)
	if d.Rule != "" {
		span.SetAttributes(attribute.String("weir.rule", d.Rule))
	}
	if o.Request.Peek {
		span.SetAttributes(attribute.Bool("weir.peek", true))
	}
	if o.Err != nil {
		span.SetStatus(codes.Error, "the store couldn't be reached") // its error may say more than is meant for whoever reads traces
	}
	span.End()
}

// Call begins the span of a check's wait for a shard of Redis. It is for redisstore.Options.Trace.
func (t *Tracer) Call(ctx context.Context, shard string) func(failure string) {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return nil
	}
	_, span := t.tracer.Start(ctx, "weir.store", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("db.system.name", "redis"), attribute.String("weir.shard", shard)))
	return func(failure string) {
		if failure != "" {
			span.SetAttributes(attribute.String("error.type", failure))
			span.SetStatus(codes.Error, failure)
		}
		span.End()
	}
}

// ID is the id of the trace that ctx belongs to, or "" if it belongs to none.
func ID(ctx context.Context) string {
	if id := trace.SpanContextFromContext(ctx).TraceID(); id.IsValid() {
		return id.String()
	}
	return ""
}
