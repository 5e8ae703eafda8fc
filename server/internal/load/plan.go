package load

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Limits on a plan, so that a typo doesn't use up the memory.
const (
	MaxWorkers  = 10_000
	MaxKeys     = 10_000_000
	MaxRate     = 10_000_000
	MaxDuration = 24 * time.Hour
)

// Plan says what load to generate.
type Plan struct {
	// Duration is how long the load is measured.
	Duration time.Duration
	// Warmup is how long the same load is sent before it is measured.
	Warmup time.Duration
	// Workers is how many requests may be in flight at once.
	Workers int
	// Rate is how many requests are due per second in an open loop. 0 means a closed loop.
	Rate float64
	// Poisson makes the requests of an open loop due at random times. Without it, they are evenly spaced.
	Poisson bool
	// Keys is how many clients there are.
	Keys int
	// Distribution says how often each client sends requests.
	Distribution Distribution
	// Exponent is the exponent of the Zipf distribution. It must be more than 1.
	Exponent float64
	// Sample is for targets that decide faster than the clock can be read. In a closed loop, only one in this many
	// requests is timed. 0 means that all requests are timed.
	Sample int

	// The functions below are called when the measured time begins, and again after the last answer. They may be nil.

	// StoreCPU returns the CPU time that the store's server has used.
	StoreCPU func(context.Context) (time.Duration, error)
	// StoreCalls returns how many calls the nodes have sent to the store's server.
	StoreCalls func() uint64
	// Leases returns how many charges the nodes have decided by themselves, and how many they have sent to the store.
	Leases func() (local, asked uint64)
	// Mark is for callers that read clocks and counters of their own.
	Mark func()

	sequence sequence            // set by Prepare
	nap      func(time.Duration) // replaced by tests with virtual clocks
}

// Validate returns an error about the first invalid field. The error begins with the name of the field's flag.
func (p *Plan) Validate() error {
	switch {
	case p.Duration <= 0 || p.Duration > MaxDuration:
		return fmt.Errorf("duration: must be more than 0 and at most %s, got %s", MaxDuration, p.Duration)
	case p.Warmup < 0 || p.Warmup > MaxDuration:
		return fmt.Errorf("warmup: must be from 0 to %s, got %s", MaxDuration, p.Warmup)
	case p.Workers < 1 || p.Workers > MaxWorkers:
		return fmt.Errorf("concurrency: must be from 1 to %d, got %d", MaxWorkers, p.Workers)
	case !(p.Rate >= 0 && p.Rate <= MaxRate):
		return fmt.Errorf("rate: must be from 0 to %d a second, got %v", MaxRate, p.Rate)
	case p.Poisson && p.Rate == 0:
		return fmt.Errorf("poisson: needs rate: a closed loop sends when it is answered")
	case p.Keys < 1 || p.Keys > MaxKeys:
		return fmt.Errorf("keys: must be from 1 to %d, got %d", MaxKeys, p.Keys)
	case !slices.Contains([]Distribution{"", Uniform, Zipf, Hot}, p.Distribution):
		return fmt.Errorf("distribution: must be uniform, zipf or hot, got %q", p.Distribution)
	case p.Distribution == Zipf && !(p.Exponent > 1 && p.Exponent <= 10):
		return fmt.Errorf("zipf: must be more than 1 and at most 10, got %v", p.Exponent)
	}
	return nil
}

// Prepare draws the client of each request. If it isn't called, [Run] draws them. Call it to use the same clients in
// several runs.
func (p *Plan) Prepare() { p.sequence = newSequence(p.Distribution, p.Keys, p.Exponent) }

func (p *Plan) open() bool { return p.Rate > 0 }

// sample returns n if one in n requests is timed.
func (p *Plan) sample() int {
	if p.open() {
		return 1
	}
	return max(p.Sample, 1)
}
