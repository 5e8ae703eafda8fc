package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weirhq/weir/internal/cputime"
	"github.com/weirhq/weir/internal/machine"
)

// inTurns measures a workload for one contender after the other. Whoever comes next
// finds what the last one left in caches and on the heap, so the order is random.
func inTurns(ctx context.Context, c *config, seats []*seat, workload int, rng *rand.Rand) ([]sample, error) {
	samples := make([]sample, len(seats))
	for _, n := range rng.Perm(len(seats)) {
		var err error
		if samples[n], err = measureWarm(ctx, c, seats[n].env.server, seats[n].workers[workload]); err != nil {
			return nil, fmt.Errorf("%s: %w", seats[n].name, err)
		}
	}
	return samples, nil
}

// turnTime is how long one contender has the cores when all are measured together. Shorter turns
// scatter less, but servers fall asleep in between: then waking them takes most of the
// time, and whatever a contender adds to it seems small.
const turnTime = 10 * time.Millisecond

// together measures a workload of one goroutine for all contenders at the same
// time, in turns of a few milliseconds. The latency of one check after the other depends on where the
// kernel puts client and server, and on what else the machine does, by much more than contenders
// differ: so they share that luck.
func together(ctx context.Context, c *config, seats []*seat, workload int, rng *rand.Rand) ([]sample, error) {
	if _, err := shared(ctx, seats, workload, rng, c.warmup); err != nil {
		return nil, err
	}
	best, err := shared(ctx, seats, workload, rng, c.time)
	for again := c.again; err == nil && again > 0 && !best[0].calm(); again-- {
		var s []sample
		if s, err = shared(ctx, seats, workload, rng, c.time); err == nil && s[0].others < best[0].others {
			best = s
		}
	}
	return best, err
}

// shared is one measurement, in which each contender has the cores for the time d.
func shared(ctx context.Context, seats []*seat, workload int, rng *rand.Rand, d time.Duration) ([]sample, error) {
	samples := make([]sample, len(seats))
	for _, s := range seats {
		s.workers[workload][0].reset()
	}
	before, start, err := allCPU(ctx, seats)
	if err != nil {
		return nil, err
	}
	for range max(1, d/turnTime) {
		for _, n := range rng.Perm(len(seats)) {
			begin, own := time.Now(), cputime.Used()
			seats[n].workers[workload][0].runFor(min(d, turnTime))
			samples[n].wall += time.Since(begin)
			samples[n].client += cputime.Used() - own
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	after, end, err := allCPU(ctx, seats)
	if err != nil {
		return nil, err
	}
	for n := range samples {
		samples[n].redis = after[n] - before[n]
		samples[n].others = start.Others(end)
		samples[n].add(seats[n].workers[workload][:1])
	}
	return samples, nil
}

// allCPU reads what every server has used, and the clocks.
func allCPU(ctx context.Context, seats []*seat) ([]time.Duration, machine.Usage, error) {
	used, sum := make([]time.Duration, len(seats)), time.Duration(0)
	for n, s := range seats {
		var err error
		if used[n], err = s.env.server.CPU(ctx); err != nil {
			return nil, machine.Usage{}, err
		}
		sum += used[n]
	}
	return used, machine.Read(sum), nil
}
