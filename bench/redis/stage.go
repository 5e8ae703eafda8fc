package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// table is what came of one workload.
type table struct {
	workload   string
	goroutines int
	rows       []row
	warnings   []string
}

// row is what came of one contender, by round.
type row struct {
	label   string
	samples []sample
}

func many(c *config) string { return fmt.Sprintf("%d goroutines", c.goroutines) }

const (
	alone        = "1 goroutine"
	memoryWeight = "memory"
)

// plan lists the workloads.
func plan(c *config, entries []contender) []table {
	var tables []table
	for _, t := range []table{{workload: many(c), goroutines: c.goroutines}, {workload: alone, goroutines: 1}} {
		if !c.workloads.MatchString(t.workload) || len(entries) == 0 {
			continue
		}
		for _, o := range entries {
			t.rows = append(t.rows, row{label: o.name})
		}
		tables = append(tables, t)
	}
	return tables
}

func measureAll(ctx context.Context, c *config, stderr io.Writer) (*results, error) {
	entries, weights := pick(c.contenders), planWeights(c)
	r := &results{tables: plan(c, entries)}
	steps := len(weights)
	provoked := c.long > 0 && c.workloads.MatchString(hostileName)
	if provoked {
		steps++
	}
	if len(r.tables) > 0 {
		steps += len(entries) + c.rounds
	}
	p := report.NewProgress(stderr, steps)
	keys := workload.MakeKeys(max(c.keys, c.clients, c.rivals))
	if len(r.tables) > 0 {
		if err := r.race(ctx, c, entries, keys, p); err != nil {
			return nil, err
		}
	}
	for _, w := range weights {
		p.Step("memory of %s counters: %s", report.Amount(w.checks*w.counters), w.name)
		f, err := w.weigh(ctx, c, keys)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		r.footprints = append(r.footprints, f)
	}
	if provoked {
		p.Step("a hostile client with logs of %s admissions", report.Amount(c.long))
		var err error
		if r.slowest, err = provoke(ctx, c.long); err != nil {
			return nil, fmt.Errorf("%s: %w", hostileName, err)
		}
	}
	p.Done()
	return r, nil
}

// race fills a server for every contender, and one for all of them, and then measures them in turns.
func (r *results) race(ctx context.Context, c *config, entries []contender, keys workload.Keys, p *report.Progress) (err error) {
	seq := workload.Uniform(c.keys)
	common, err := newEnv(c, keys)
	if err != nil {
		return err
	}
	var seats []*seat
	defer func() {
		for _, s := range seats {
			err = errors.Join(err, s.close())
		}
		err = errors.Join(err, common.server.Close())
	}()
	for _, o := range entries {
		p.Step("fill: %s", o.name)
		s, err := sit(ctx, c, o, keys, seq, r.tables, common)
		if err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		seats = append(seats, s)
	}
	rng := rand.New(rand.NewPCG(3, 0))
	for round := range c.rounds {
		p.Step("round %d of %d", round+1, c.rounds)
		for i := range r.tables {
			t := &r.tables[i]
			measure := inTurns
			if t.goroutines == 1 {
				measure = together
			}
			samples, err := measure(ctx, c, seats, i, rng)
			if err != nil {
				return err
			}
			t.add(samples)
		}
	}
	return nil
}

func (t *table) add(samples []sample) {
	for n, s := range samples {
		if s.failed > 0 {
			t.warnings = append(t.warnings, fmt.Sprintf("%s: %d of %d checks were refused or failed: %s",
				t.rows[n].label, s.failed, s.checks, strings.ReplaceAll(s.fault.Error(), "\n", "; ")))
		}
		t.rows[n].samples = append(t.rows[n].samples, s)
	}
}

// seat is a contender, ready for each of the workloads.
type seat struct {
	contender
	env     *env // a server of its own
	common  *env // the server of all, for the workload of one goroutine
	opened  []*instance
	workers [][]*worker // by workload
}

func newEnv(c *config, keys workload.Keys) (*env, error) {
	server, err := redistest.Start(redistest.Options{})
	return &env{server: server, keys: keys, used: c.keys}, err
}

// sit fills the servers of a contender, so that they hold every key.
func sit(ctx context.Context, c *config, o contender, keys workload.Keys, seq workload.Sequence, tables []table, common *env) (_ *seat, err error) {
	own, err := newEnv(c, keys)
	if err != nil {
		return nil, err
	}
	s := &seat{contender: o, env: own, common: common}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	for _, t := range tables {
		e := own
		if t.goroutines == 1 {
			e = common
		}
		if err := o.with(ctx, e, func(in *instance) error { return fill(ctx, in, 0, c.keys, c.goroutines) }); err != nil {
			return nil, err
		}
		// Connections of its own: a client may never be the same again once it was under load.
		in, err := o.open(ctx, e)
		if err != nil {
			return nil, err
		}
		s.opened = append(s.opened, in)
		s.workers = append(s.workers, newWorkers(in, seq, t.goroutines))
	}
	return s, nil
}

func (s *seat) close() error {
	for _, in := range s.opened {
		in.close()
	}
	return s.env.server.Close()
}

// row finds a row by its label, or returns nil.
func (t *table) row(label string) *row {
	for i := range t.rows {
		if t.rows[i].label == label {
			return &t.rows[i]
		}
	}
	return nil
}
