package otlp

import (
	"golang.org/x/time/rate"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// tracesPerSecond is how many traces a node begins in a second, and how many of its callers' traces it continues. Without a bound,
// a flood, or a client that asks for traces, would make tracing cost the node more than its checks, and the collector as much again.
const tracesPerSecond = 1000

// sampler follows the decision of the request's own trace, if it has one, and otherwise traces the configured share. Both are
// bounded, so that a client that marks each of its requests as sampled can't choose the amount.
func (c *Config) sampler() sdktrace.Sampler {
	root := sdktrace.AlwaysSample()
	if c.Sample != nil {
		root = sdktrace.TraceIDRatioBased(*c.Sample)
	}
	begun := &bounded{root, rate.NewLimiter(tracesPerSecond, tracesPerSecond)}
	joined := &bounded{sdktrace.AlwaysSample(), rate.NewLimiter(tracesPerSecond, tracesPerSecond)}
	return sdktrace.ParentBased(begun, sdktrace.WithRemoteParentSampled(joined))
}

// bounded limits the rate of another sampler.
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
