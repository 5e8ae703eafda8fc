package main

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/internal/load"
)

// interleave measures one goroutine's checks for all contenders at the same time: they share a server, and take turns at
// every check.
//
// The latency of one check after the other depends on where the kernel puts client and server, and on whether the server
// has fallen asleep, by much more than contenders differ: half of the checks take twice as long as the others. So
// contenders have to share that luck. When each of them had the cores and a server to itself for some milliseconds, one
// round differed from the next by a quarter.
func interleave(ctx context.Context, plan load.Plan, entries []entry, keys compare.Keys, rng *rand.Rand) ([]compare.Sample, error) {
	t := &interleaved{keys: keys, rng: rng}
	for n, e := range entries {
		t.turns = append(t.turns, turn{n: n, check: e.limiter.Worker()})
	}
	plan.Workers, plan.StoreCPU = 1, entries[0].server.CPU
	plan.Duration *= time.Duration(len(entries))
	all, err := compare.Measure(ctx, plan, t)
	if err != nil {
		return nil, err
	}
	samples := make([]compare.Sample, len(entries))
	for _, turn := range t.turns {
		samples[turn.n] = turn.sample(all.Others)
	}
	return samples, nil
}

// interleaved sends each request through every contender, in random order.
type interleaved struct {
	turns []turn
	keys  compare.Keys
	rng   *rand.Rand
}

// turn is one contender's part of the requests.
type turn struct {
	n     int // of the contender
	check compare.Check
	took  []time.Duration
	wrong int64
	fault error
}

func (t *interleaved) String() string      { return "Redis" }
func (t *interleaved) Sender() load.Sender { return t }

// Send times each contender's check by itself.
func (t *interleaved) Send(_ context.Context, key uint32) load.Answer {
	t.rng.Shuffle(len(t.turns), func(i, j int) { t.turns[i], t.turns[j] = t.turns[j], t.turns[i] })
	for i := range t.turns {
		turn := &t.turns[i]
		begin := time.Now()
		err := turn.check(t.keys.At(key))
		turn.took = append(turn.took, time.Since(begin))
		if err != nil {
			turn.wrong++
			turn.fault = err
		}
	}
	return load.Answer{}
}

// sample doesn't know the processor time, since contenders share it.
func (t *turn) sample(others float64) compare.Sample {
	r := &load.Report{Checks: int64(len(t.took)), Allowed: int64(len(t.took)) - t.wrong}
	for _, d := range t.took {
		r.Seconds += d.Seconds()
	}
	if slices.Sort(t.took); len(t.took) > 0 {
		r.Latency.P50, r.Latency.P99 = t.took[len(t.took)/2], t.took[len(t.took)*99/100]
	}
	if t.fault != nil {
		r.Faults = []load.Fault{{Text: t.fault.Error(), Count: t.wrong}}
	}
	return compare.Sample{Report: r, Allocs: math.NaN(), Others: others}
}
