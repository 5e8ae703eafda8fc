// Package tracing makes OpenTelemetry spans of decisions. Two lines give a program that embeds Weir and has a TracerProvider
// the same spans as `weir serve`:
//
//	tracer := tracing.New(otel.GetTracerProvider())
//	limiter := weir.NewLimiter(store, rules, weir.Options{Trace: tracer.Check})
//
// A check's span is a child of the span in its context, such as that of otelhttp or of [Tracer.Handler]. With [Tracer.Call] in
// redisstore.Options, each wait for Redis is a span below the check's.
//
// Spans have rule IDs, outcomes, reasons, edges and shards, but never a client's key, address, path or query.
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

// New makes a Tracer that uses the provider.
func New(p trace.TracerProvider) *Tracer { return &Tracer{p.Tracer(name)} }

// Check starts the span of a decision. It is for [weir.Options.Trace].
func (t *Tracer) Check(ctx context.Context) (context.Context, func(*weir.Observation)) {
	kind := trace.SpanKindInternal
	if trace.SpanContextFromContext(ctx).IsRemote() {
		kind = trace.SpanKindServer // the caller's span is in another process, so this is the first span in this one
	}
	ctx, span := t.tracer.Start(ctx, "weir.check", trace.WithSpanKind(kind))
	if !span.IsRecording() {
		return ctx, nil
	}
	return ctx, func(o *weir.Observation) { end(span, o) }
}

func end(span trace.Span, o *weir.Observation) {
	// The values are the same as the metrics' labels.
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
		span.SetStatus(codes.Error, "the store couldn't be reached") // err may have details that don't belong in traces
	}
	span.End()
}

// Call starts the span of a check's wait for a Redis shard. It is for redisstore.Options.Trace.
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

// ID returns the trace ID of ctx, or "" if ctx is in no trace.
func ID(ctx context.Context) string {
	if id := trace.SpanContextFromContext(ctx).TraceID(); id.IsValid() {
		return id.String()
	}
	return ""
}
