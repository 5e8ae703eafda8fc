package otlp

import (
	"golang.org/x/time/rate"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// tracesPerSecond is how many traces a node begins, and goes on with, in a second. In a flood, or at the
// hands of a client that asks for traces, more would cost it more than its checks, and the collector as much again.
const tracesPerSecond = 1000

// sampler follows the decision of the request's trace, if it has one, and otherwise traces the share that is configured. Both are
// bounded: a client that marks each of its requests as sampled doesn't decide how many there are.
func (c *Config) sampler() sdktrace.Sampler {
	root := sdktrace.AlwaysSample()
	if c.Sample != nil {
		root = sdktrace.TraceIDRatioBased(*c.Sample)
	}
	begun := &bounded{root, rate.NewLimiter(tracesPerSecond, tracesPerSecond)}
	joined := &bounded{sdktrace.AlwaysSample(), rate.NewLimiter(tracesPerSecond, tracesPerSecond)}
	return sdktrace.ParentBased(begun, sdktrace.WithRemoteParentSampled(joined))
}

// bounded samples what another sampler does, at most so much.
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
