package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/weirhq/weir/bench/internal/report"
	"github.com/weirhq/weir/bench/internal/workload"
	"github.com/weirhq/weir/internal/redistest"
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

// plan lists the workloads, all of which are measured on the same fill.
func plan(c *config) []table {
	var tables []table
	for _, t := range []table{{workload: many(c), goroutines: c.goroutines}, {workload: alone, goroutines: 1}} {
		if c.workloads.MatchString(t.workload) {
			for _, o := range pick(c.contenders) {
				t.rows = append(t.rows, row{label: o.name})
			}
			tables = append(tables, t)
		}
	}
	return tables
}

func measureAll(ctx context.Context, c *config, server *redistest.Server, stderr io.Writer) (*results, error) {
	info, err := server.Info(ctx, "server")
	if err != nil {
		return nil, err
	}
	r := &results{redis: info["redis_version"], tables: plan(c)}
	entries, weights := pick(c.contenders), planWeights(c)
	if len(r.tables) == 0 {
		entries = nil
	}
	p := report.NewProgress(stderr, c.rounds*len(entries)+len(weights))
	e := &env{server: server, keys: workload.MakeKeys(max(c.keys, c.clients, c.rivals)), used: c.keys}
	seq := workload.Uniform(c.keys)
	for round := range c.rounds {
		for i := range entries {
			// Every round begins with another contender.
			n := (i + round) % len(entries)
			p.Step("round %d of %d: %s", round+1, c.rounds, entries[n].name)
			if err := turn(ctx, c, e, &entries[n], n, seq, r.tables); err != nil {
				return nil, fmt.Errorf("%s: %w", entries[n].name, err)
			}
		}
	}
	for _, w := range weights {
		p.Step("memory of %s counters: %s", report.Amount(w.checks*w.counters), w.name)
		f, err := w.weigh(ctx, c, e)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		r.footprints = append(r.footprints, f)
	}
	p.Done()
	return r, nil
}

// turn measures one contender in one round, on an empty server.
func turn(ctx context.Context, c *config, e *env, o *contender, n int, seq workload.Sequence, tables []table) error {
	if err := e.server.RestartEmpty(); err != nil {
		return err
	}
	if err := o.with(ctx, e, func(in *instance) error { return fill(ctx, in, 0, c.keys, c.goroutines) }); err != nil {
		return err
	}
	for i := range tables {
		t := &tables[i]
		// Connections of its own: a client may never be the same again once it was under load.
		if err := o.with(ctx, e, func(in *instance) error {
			s, err := measureWarm(ctx, c, e.server, newWorkers(in, seq, t.goroutines))
			if err != nil {
				return err
			}
			if s.failed > 0 {
				t.warn("%s: %d of %d checks were refused or failed: %s", o.name, s.failed, s.checks, oneLine(s.fault))
			}
			t.rows[n].samples = append(t.rows[n].samples, s)
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (t *table) warn(format string, args ...any) {
	t.warnings = append(t.warnings, fmt.Sprintf(format, args...))
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
