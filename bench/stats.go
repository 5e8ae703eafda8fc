package main

import (
	"math"
	"slices"
)

// spread is a few measurements of one thing.
type spread struct{ median, low, high float64 }

// spreadOf ignores what isn't a number. The median of an even count is the mean of the middle two.
func spreadOf(xs []float64) spread {
	xs = slices.DeleteFunc(slices.Clone(xs), math.IsNaN)
	if len(xs) == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	slices.Sort(xs)
	n := len(xs)
	return spread{(xs[(n-1)/2] + xs[n/2]) / 2, xs[0], xs[n-1]}
}

func (r *row) each(f func(sample) float64) []float64 {
	xs := make([]float64, len(r.samples))
	for i, s := range r.samples {
		xs[i] = f(s)
	}
	return xs
}

func (r *row) ns() spread     { return r.spread(func(s sample) float64 { return s.ns }) }
func (r *row) cpu() spread    { return r.spread(func(s sample) float64 { return s.cpu }) }
func (r *row) allocs() spread { return r.spread(func(s sample) float64 { return s.allocs }) }

func (s sample) calm() bool { return s.others <= disturbed }

// spread leaves out what was measured while others disturbed, unless there is nothing else.
func (r *row) spread(f func(sample) float64) spread {
	var calm []float64
	for _, s := range r.samples {
		if s.calm() {
			calm = append(calm, f(s))
		}
	}
	if calm == nil {
		calm = r.each(f)
	}
	return spreadOf(calm)
}

// ratio is how many times as long a check of r takes as one of base, computed
// within each round: the rounds differ by what else the machine was doing. Rounds
// in which either was disturbed are left out, unless there are no others.
func (r *row) ratio(base *row) spread {
	if r == nil || base == nil {
		return spreadOf(nil)
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
	return spreadOf(calm)
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
		if r := &t.rows[i]; r.kind == rival && (best == nil || r.ns().median < best.ns().median) {
			best = r
		}
	}
	return best
}
