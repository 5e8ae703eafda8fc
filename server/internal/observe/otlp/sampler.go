package otlp

import (
	"golang.org/x/time/rate"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// tracesPerSecond bounds how many traces a node starts per second, and how many traces of its callers it continues.
// Without this bound, a flood of requests, or a client that asks for traces, would make tracing cost more than the
// checks, both on the node and on the collector.
const tracesPerSecond = 1000

// sampler returns a sampler. If a request has a trace, its caller has decided whether to sample it. Of the other
// requests, the configured share is sampled. Both are bounded, so that a client can't have an unlimited number of
// requests sampled.
func (c *Config) sampler() sdktrace.Sampler {
	root := sdktrace.AlwaysSample()
	if c.Sample != nil {
		root = sdktrace.TraceIDRatioBased(*c.Sample)
	}
	begun := &bounded{root, rate.NewLimiter(tracesPerSecond, tracesPerSecond)}
	joined := &bounded{sdktrace.AlwaysSample(), rate.NewLimiter(tracesPerSecond, tracesPerSecond)}
	return sdktrace.ParentBased(begun, sdktrace.WithRemoteParentSampled(joined))
}

// bounded limits how many of the traces that another sampler accepts are sampled per second.
type bounded struct {
	sdktrace.Sampler
	limit *rate.Limiter
}

func (b *bounded) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	r := b.Sampler.ShouldSample(p)
	if r.Decision == sdktrace.RecordAndSample && !b.limit.Allow() {
		r.Decision = sdktrace.Drop
	}
	return r
}
