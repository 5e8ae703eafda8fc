package main

import (
	"github.com/weirhq/weir/server/bench/internal/machine"
	"github.com/weirhq/weir/server/bench/internal/report"
)

func (r *row) each(f func(sample) float64) []float64 {
	xs := make([]float64, len(r.samples))
	for i, s := range r.samples {
		xs[i] = f(s)
	}
	return xs
}

func (r *row) ns() report.Spread     { return r.spread(func(s sample) float64 { return s.ns }) }
func (r *row) cpu() report.Spread    { return r.spread(func(s sample) float64 { return s.cpu }) }
func (r *row) allocs() report.Spread { return r.spread(func(s sample) float64 { return s.allocs }) }

func (s sample) calm() bool { return s.others <= machine.Disturbed }

// spread leaves out what was measured while others disturbed, unless there is nothing else.
func (r *row) spread(f func(sample) float64) report.Spread {
	var calm []float64
	for _, s := range r.samples {
		if s.calm() {
			calm = append(calm, f(s))
		}
	}
	if calm == nil {
		calm = r.each(f)
	}
	return report.SpreadOf(calm)
}

// ratio is how many times as long a check of r takes as one of base, computed
// within each round: the rounds differ by what else the machine was doing. Rounds
// in which either was disturbed are left out, unless there are no others.
func (r *row) ratio(base *row) report.Spread {
	if r == nil || base == nil {
		return report.SpreadOf(nil)
	}
	var all, calm []float64
	for i := range min(len(r.samples), len(base.samples)) {
		a, b := r.samples[i], base.samples[i]
		all = append(all, a.ns/b.ns)
		if a.calm() && b.calm() {
			calm = append(calm, a.ns/b.ns)
		}
	}
	if calm == nil {
		calm = all
	}
	return report.SpreadOf(calm)
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

// fastest is the rival with the lowest median, or nil.
func (t *table) fastest() *row {
	var best *row
	for i := range t.rows {
		if r := &t.rows[i]; r.kind == rival && (best == nil || r.ns().Median < best.ns().Median) {
			best = r
		}
	}
	return best
}
