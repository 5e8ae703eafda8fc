package otlp

import (
	"golang.org/x/time/rate"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// tracesPerSecond limits how many traces a node starts per second, and how many traces of its callers it continues. Without
// this limit, a flood, or a client that asks for traces, would make tracing cost more than the checks, on the node and on
// the collector.
const tracesPerSecond = 1000

// sampler follows the sampling decision of the caller's trace if the request has one, and otherwise samples the configured
// share. Both are limited, so that a client that marks all its requests as sampled can't choose the amount.
func (c *Config) sampler() sdktrace.Sampler {
	root := sdktrace.AlwaysSample()
	if c.Sample != nil {
		root = sdktrace.TraceIDRatioBased(*c.Sample)
	}
	begun := &bounded{root, rate.NewLimiter(tracesPerSecond, tracesPerSecond)}
	joined := &bounded{sdktrace.AlwaysSample(), rate.NewLimiter(tracesPerSecond, tracesPerSecond)}
	return sdktrace.ParentBased(begun, sdktrace.WithRemoteParentSampled(joined))
}

// bounded limits how many traces per second another sampler samples.
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
