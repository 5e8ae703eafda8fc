package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
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

// together measures a workload of one goroutine for all contenders at the same time: on one server, they
// take turns at every check. The latency of one check after the other depends on where the kernel puts client and server, and
// on whether the server has fallen asleep, by much more than contenders differ: half of the checks take
// twice as long as the others. So contenders share that luck. When each had the cores and a server to itself for some
// milliseconds, the median fell between the fast checks and the slow ones, and one round differed from the next by a quarter.
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

// shared is one measurement, in which each contender has about the time d.
func shared(ctx context.Context, seats []*seat, workload int, rng *rand.Rand, d time.Duration) ([]sample, error) {
	order := make([]*worker, len(seats))
	for n, s := range seats {
		order[n] = s.workers[workload][0]
		order[n].reset()
	}
	server := seats[0].common.server
	start, err := usage(ctx, server)
	if err != nil {
		return nil, err
	}
	for now := start.Wall; now.Sub(start.Wall) < d*time.Duration(len(seats)) && ctx.Err() == nil; {
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, w := range order {
			now = w.step(time.Now())
		}
	}
	end, err := usage(ctx, server)
	if err != nil {
		return nil, err
	}
	samples := make([]sample, len(seats))
	for n, s := range seats {
		own := s.workers[workload][:1]
		for _, ns := range own[0].took {
			samples[n].wall += time.Duration(ns)
		}
		samples[n].others = start.Others(end)
		samples[n].add(own)
	}
	return samples, nil
}
