package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/internal/load"
)

// entry is a contender that is ready for a workload, on a server that holds every key.
type entry struct {
	contender
	server  *redistest.Server
	limiter *compare.Limiter
}

// race fills a server for every contender, or one that all share if there is one goroutine, and then measures the
// contenders in turns.
func race(ctx context.Context, c *config, workload string, contenders []contender, keys compare.Keys, p *report.Progress) (_ *compare.Table, err error) {
	var server *redistest.Server
	var closers []func() error
	defer func() {
		for _, f := range slices.Backward(closers) {
			err = errors.Join(err, f())
		}
	}()
	var entries []entry
	var names []string
	for _, o := range contenders {
		p.Step("%s: fill: %s", workload, o.name)
		if server == nil || workload != alone {
			if server, err = redistest.Start(redistest.Options{}); err != nil {
				return nil, err
			}
			closers = append(closers, server.Close)
		}
		limiter, err := o.fill(ctx, c, server, keys)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.name, err)
		}
		closers = append(closers, func() error { limiter.Close(); return nil })
		entries, names = append(entries, entry{o, server, limiter}), append(names, o.name)
	}
	t := compare.NewTable(workload, names...)
	plan := load.Plan{Duration: c.Time, Warmup: c.Warmup, Workers: c.goroutines, Keys: c.Keys}
	plan.Prepare()
	measure := inTurns
	if workload == alone {
		measure = interleave
	}
	rng := rand.New(rand.NewPCG(3, 0))
	for round := range c.Rounds {
		p.Step("%s: round %d of %d", workload, round+1, c.Rounds)
		samples, err := measure(ctx, plan, entries, keys, rng)
		if err != nil {
			return nil, err
		}
		for n, s := range samples {
			t.Add(n, s)
		}
	}
	return t, nil
}

// fill makes a server hold every key, and returns a limiter with new connections, since load may change a client for good.
func (o *contender) fill(ctx context.Context, c *config, server *redistest.Server, keys compare.Keys) (*compare.Limiter, error) {
	limiter, err := o.open(ctx, server.Addr, c.timeout)
	if err != nil {
		return nil, err
	}
	err = limiter.Fill(ctx, keys, 0, c.Keys, c.goroutines)
	limiter.Close()
	debug.FreeOSMemory() // the contender that is measured next must not pay for the garbage
	if err != nil {
		return nil, err
	}
	return o.open(ctx, server.Addr, c.timeout)
}

// inTurns measures one contender after the other. Each finds what the last one left in caches and on the heap, so their
// order is random.
func inTurns(ctx context.Context, plan load.Plan, entries []entry, keys compare.Keys, rng *rand.Rand) (_ []compare.Sample, err error) {
	samples := make([]compare.Sample, len(entries))
	for _, n := range rng.Perm(len(entries)) {
		plan.StoreCPU = entries[n].server.CPU
		if samples[n], err = compare.Measure(ctx, plan, entries[n].limiter.Target(keys)); err != nil {
			return nil, fmt.Errorf("%s: %w", entries[n].name, err)
		}
	}
	return samples, nil
}
