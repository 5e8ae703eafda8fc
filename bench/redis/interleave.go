package main

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/machine"
	"github.com/weirhq/weir/server/internal/load"
)

// interleave measures one goroutine's checks for all contenders at the same time: they share a server, and take turns at
// every check.
//
// The latency of one check after the other depends on where the kernel puts client and server, and on whether the server
// has fallen asleep, by much more than contenders differ: half of the checks take twice as long as the others. So
// contenders have to share that luck. When each of them had the cores and a server to itself for some milliseconds, one
// round differed from the next by a quarter.
func interleave(ctx context.Context, c *config, plan load.Plan, entries []*entry, workload int, rng *rand.Rand) ([]compare.Sample, error) {
	plan.Workers, plan.Warmup = 1, 0
	run := func(each time.Duration) ([]compare.Sample, error) {
		t := &interleaved{rng: rng}
		for n, e := range entries {
			t.turns = append(t.turns, turn{n: n, check: e.instances[workload].worker(), took: hdrhistogram.New(1, math.MaxUint32, 3)})
		}
		plan.Duration = each * time.Duration(len(entries))
		var clock compare.Clock
		plan.Mark = func() { clock.Mark(ctx, entries[0].shared.server) }
		_, err := load.Run(ctx, plan, t, nil)
		return t.samples(clock.Others()), errors.Join(err, clock.Err(), ctx.Err())
	}
	if _, err := run(c.Warmup); err != nil {
		return nil, err
	}
	others := func(samples []compare.Sample) float64 { return samples[0].Others }
	return machine.Calmest(c.Again, others, func() ([]compare.Sample, error) { return run(c.Time) })
}

// interleaved sends each request through every contender, in random order.
type interleaved struct {
	turns []turn
	rng   *rand.Rand
}

// turn is one contender's part of the requests.
type turn struct {
	n          int // of the contender
	check      check
	took       *hdrhistogram.Histogram
	wall       time.Duration
	unexpected int64
	fault      error
}

func (t *interleaved) String() string      { return "Redis" }
func (t *interleaved) Sender() load.Sender { return t }

// Send times each contender's check by itself.
func (t *interleaved) Send(_ context.Context, key uint32) load.Answer {
	t.rng.Shuffle(len(t.turns), func(i, j int) { t.turns[i], t.turns[j] = t.turns[j], t.turns[i] })
	for i := range t.turns {
		turn := &t.turns[i]
		begin := time.Now()
		err := turn.check(key)
		took := time.Since(begin)
		turn.wall += took
		_ = turn.took.RecordValue(int64(min(took, math.MaxUint32))) // within the bounds, so there is no error
		if err != nil {
			turn.unexpected++
			turn.fault = err
		}
	}
	return load.Answer{}
}

// samples returns a sample for each contender. Processor time isn't known, since they share it.
func (t *interleaved) samples(others float64) []compare.Sample {
	samples := make([]compare.Sample, len(t.turns))
	for _, turn := range t.turns {
		r := &load.Report{Checks: turn.took.TotalCount(), Seconds: turn.wall.Seconds()}
		r.Latency.P50 = time.Duration(turn.took.ValueAtPercentile(50))
		r.Latency.P99 = time.Duration(turn.took.ValueAtPercentile(99))
		if turn.fault != nil {
			r.Faults = []load.Fault{{Text: turn.fault.Error(), Count: turn.unexpected}}
		}
		samples[turn.n] = compare.Sample{Report: r, Unexpected: turn.unexpected, RedisCPU: math.NaN(), Allocs: math.NaN(), Others: others}
	}
	return samples
}
