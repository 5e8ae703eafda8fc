package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/bench/internal/workload"
	"github.com/weirhq/weir/server/internal/load"
)

// Names of workloads.
func many(c *config) string { return fmt.Sprintf("%d goroutines", c.goroutines) }

const (
	alone        = "1 goroutine"
	memoryWeight = "memory"
)

func measureAll(ctx context.Context, c *config, stderr io.Writer) (*results, error) {
	contenders, weights := pick(&c.Contenders), weighings(c)
	r := &results{}
	for _, name := range []string{many(c), alone} {
		if c.Workloads.MatchString(name) && len(contenders) > 0 {
			r.Tables = append(r.Tables, compare.NewTable(name, names(contenders)...))
		}
	}
	steps := len(weights)
	provoked := c.long > 0 && c.Workloads.MatchString(hostileName)
	if provoked {
		steps++
	}
	if len(r.Tables) > 0 {
		steps += len(contenders) + c.Rounds
	}
	p := report.NewProgress(stderr, steps)
	keys := workload.MakeKeys(max(c.Keys, c.clients, c.rivals))
	if len(r.Tables) > 0 {
		if err := r.race(ctx, c, contenders, keys, p); err != nil {
			return nil, err
		}
	}
	for _, w := range weights {
		p.Step("memory of %s counters: %s", report.Amount(w.checks*w.counters), w.name)
		f, err := w.weigh(ctx, c, keys)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		r.Footprints = append(r.Footprints, f)
	}
	if provoked {
		p.Step("a hostile client with logs of %s admissions", report.Amount(c.long))
		var err error
		if r.Slowest, err = provoke(ctx, c.long); err != nil {
			return nil, fmt.Errorf("%s: %w", hostileName, err)
		}
	}
	p.Done()
	return r, nil
}

// race fills a server for every contender, and one that all share, and then measures the contenders in turns.
func (r *results) race(ctx context.Context, c *config, contenders []contender, keys workload.Keys, p *report.Progress) (err error) {
	shared, err := newEnv(c, keys)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shared.server.Close()) }()
	var entries []*entry
	defer func() {
		for _, e := range entries {
			err = errors.Join(err, e.close())
		}
	}()
	for _, o := range contenders {
		p.Step("fill: %s", o.name)
		e, err := enter(ctx, c, o, keys, r.Tables, shared)
		if err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		entries = append(entries, e)
	}
	plan := load.Plan{Duration: c.Time, Warmup: c.Warmup, Keys: c.Keys}
	plan.Prepare()
	rng := rand.New(rand.NewPCG(3, 0))
	for round := range c.Rounds {
		p.Step("round %d of %d", round+1, c.Rounds)
		for i, t := range r.Tables {
			var samples []compare.Sample
			var err error
			if t.Workload == alone {
				samples, err = interleave(ctx, c, plan, entries, i, rng)
			} else {
				plan.Workers = c.goroutines
				samples, err = inTurns(ctx, c, plan, entries, i, rng)
			}
			if err != nil {
				return err
			}
			for n, s := range samples {
				t.Add(n, s)
			}
		}
	}
	return nil
}

// entry is a contender that is ready for every workload.
type entry struct {
	contender
	env       *env // a server of its own
	shared    *env // the server that all contenders share, for the workload of one goroutine
	instances []*instance
}

func newEnv(c *config, keys workload.Keys) (*env, error) {
	server, err := redistest.Start(redistest.Options{})
	return &env{server: server, timeout: c.timeout, keys: keys, used: c.Keys}, err
}

// enter fills the servers of a contender, so that they hold every key.
func enter(ctx context.Context, c *config, o contender, keys workload.Keys, tables []*compare.Table, shared *env) (_ *entry, err error) {
	own, err := newEnv(c, keys)
	if err != nil {
		return nil, err
	}
	e := &entry{contender: o, env: own, shared: shared}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	for _, t := range tables {
		on := own
		if t.Workload == alone {
			on = shared
		}
		if err := o.with(ctx, on, func(in *instance) error { return fill(ctx, in, 0, c.Keys, c.goroutines) }); err != nil {
			return nil, err
		}
		// New connections, since load may change a client for good.
		in, err := o.open(ctx, on)
		if err != nil {
			return nil, err
		}
		e.instances = append(e.instances, in)
	}
	return e, nil
}

func (e *entry) close() error {
	for _, in := range e.instances {
		in.close()
	}
	return e.env.server.Close()
}

// inTurns measures one contender after the other. Each finds what the last one left in caches and on the heap, so their
// order is random.
func inTurns(ctx context.Context, c *config, plan load.Plan, entries []*entry, workload int, rng *rand.Rand) ([]compare.Sample, error) {
	samples := make([]compare.Sample, len(entries))
	for _, n := range rng.Perm(len(entries)) {
		setup := compare.Setup{Plan: plan, Redis: entries[n].env.server, Again: c.Again}
		var err error
		if samples[n], err = setup.Measure(ctx, target{entries[n].instances[workload]}); err != nil {
			return nil, fmt.Errorf("%s: %w", entries[n].name, err)
		}
	}
	return samples, nil
}

// target makes load on an instance.
type target struct{ in *instance }

func (t target) String() string      { return "Redis" }
func (t target) Sender() load.Sender { return sender{t.in.worker()} }

type sender struct{ check check }

func (s sender) Send(_ context.Context, n uint32) load.Answer {
	err := s.check(n)
	switch {
	case err == nil:
		return load.Answer{}
	case errors.Is(err, errRefused):
		return load.Answer{Outcome: load.Refused}
	}
	return load.Answer{Outcome: load.Failed, Err: err}
}
