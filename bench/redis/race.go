package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/internal/load"
)

// entry is a contender that is ready for a workload. Its server holds every key.
type entry struct {
	contender
	server  *redistest.Server
	limiter *compare.Limiter
}

// race fills a server for every contender, or one server for all if there is only one goroutine. Then the contenders take
// turns.
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

// fill writes every key to a server, and returns a limiter with new connections, because load may have changed the client
// permanently.
func (o *contender) fill(ctx context.Context, c *config, server *redistest.Server, keys compare.Keys) (*compare.Limiter, error) {
	limiter, err := o.open(ctx, server.Addr, time.Minute) // all clients connect at the same time, which may take long
	if err != nil {
		return nil, err
	}
	err = limiter.Fill(ctx, keys, 0, c.Keys, c.goroutines)
	limiter.Close()
	debug.FreeOSMemory() // the next measurement must not pay for the garbage
	if err != nil {
		return nil, err
	}
	return o.open(ctx, server.Addr, c.timeout)
}

// inTurns measures the contenders one after the other, in random order, because each one finds what the previous one left
// in caches.
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

// interleave measures all contenders with one goroutine on the same server. They take turns at every check. Latency
// depends much more on which cores the kernel chooses, and on whether the server is asleep, than on the contender. Taking
// turns spreads this effect evenly.
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

// interleaved sends each request to every contender, in random order.
type interleaved struct {
	turns []turn
	keys  compare.Keys
	rng   *rand.Rand
}

// turn is one contender, and the times of its checks.
type turn struct {
	n     int // index of the contender
	check compare.Check
	took  []time.Duration
	wrong int64
	fault error
}

func (t *interleaved) String() string      { return "Redis" }
func (t *interleaved) Sender() load.Sender { return t }

// Send times the check of each contender separately.
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

// sample returns the results of a contender. The CPU time isn't known, because the contenders share it.
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
