package load

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Bounds of a plan. They keep a typing mistake from filling memory.
const (
	MaxWorkers  = 10_000
	MaxKeys     = 10_000_000
	MaxRate     = 10_000_000
	MaxDuration = 24 * time.Hour
)

// Plan says what load to make.
type Plan struct {
	// Duration is the time that is measured.
	Duration time.Duration
	// Warmup is how long to make the same load before that.
	Warmup time.Duration
	// Workers is how many requests may be in flight at once.
	Workers int
	// Rate is how many requests are due a second, in an open loop. 0 means a closed loop.
	Rate float64
	// Poisson makes an open loop's requests due at random times instead of evenly spaced.
	Poisson bool
	// Keys is how many clients there are.
	Keys int
	// Distribution says how often each client sends requests.
	Distribution Distribution
	// Exponent is that of a Zipf distribution; more than 1.
	Exponent float64
	// Sample makes a closed loop time only one request in that many, for targets that answer faster than the clock can be
	// read. 0 means all.
	Sample int

	// These functions are called when the measured time begins, and after the last answer. Those that are nil aren't.

	// StoreCPU returns the processor time that the store's server has used.
	StoreCPU func(context.Context) (time.Duration, error)
	// StoreCalls returns how many calls the nodes have made to the store's server.
	StoreCalls func() uint64
	// Leases returns how many charges the nodes have decided themselves, and for how many they have asked the store.
	Leases func() (local, asked uint64)
	// Mark lets the caller read clocks and counters of its own.
	Mark func()

	sequence sequence            // set by Prepare
	nap      func(time.Duration) // replaces nap, for virtual clocks
}

// Validate reports the first mistake in the plan. The error begins with the name of the flag.
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

// Prepare draws which client each request is from, as [Run] otherwise does, so that several runs share the work.
func (p *Plan) Prepare() { p.sequence = newSequence(p.Distribution, p.Keys, p.Exponent) }

func (p *Plan) open() bool { return p.Rate > 0 }

// sample is how many requests there are to each that is timed.
func (p *Plan) sample() int {
	if p.open() {
		return 1
	}
	return max(p.Sample, 1)
}
