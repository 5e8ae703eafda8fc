package main

import (
	"fmt"
	"math"

	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
)

// noAllocs leaves room for what the runtime allocates beside the checks.
const noAllocs = 0.0001

// judge holds the results against the targets.
func judge(c *config, r *results) []report.Target {
	var ts []report.Target
	against := func(workload string, most float64) {
		t := r.table(workload)
		fast := fastest(t)
		note := ""
		if fast != nil {
			note = fast.Name
		}
		ts = append(ts, ratioTarget(workload+": store / fastest rival", most, t.Row(storeName).Ratio(fast, compare.Nanoseconds), note))
	}
	against(uniform(c.Keys), 0.7)
	against(zipf(c.Keys), 0.75)
	against(hotKey, 1.0)

	small := r.table(uniform(c.Keys))
	ts = append(ts,
		ratioTarget(uniform(c.Keys)+": whole check / store", 1.5, small.Row(checkName).Ratio(small.Row(storeName), compare.Nanoseconds), ""),
		ratioTarget(uniform(c.Keys)+": whole check, one amount / whole check", 1.1, small.Row(amountName).Ratio(small.Row(checkName), compare.Nanoseconds), ""),
		report.Target{Name: "allocations per check, store and whole check", Bound: noAllocs, Got: r.mostAllocs(), Digits: 5, Note: "the runtime's own included"})
	if c.large > 0 {
		ts = append(ts, largeTargets(c, r)...)
	}
	return append(ts, httpTargets(r)...)
}

// largeTargets are those that need many keys.
func largeTargets(c *config, r *results) []report.Target {
	t, f := r.table(uniform(c.large)), r.footprint(storeName, c.large)
	return []report.Target{
		ratioTarget(fmt.Sprintf("store: %s / %s", uniform(c.large), uniform(c.Keys)), 1.5,
			t.Row(storeName).Ratio(t.Row(smallStore(c)), compare.Nanoseconds), "in the same rounds"),
		{Name: "bytes of heap per counter at " + report.Amount(c.large), Bound: 40, Got: f.Heap, Note: fmt.Sprintf("the store says %.1f", f.Reported)},
		{Name: "bytes per counter, at worst while growing", Bound: 60, Got: f.Worst, Note: fmt.Sprintf("heap with its garbage %.1f", f.WorstHeap)},
	}
}

func ratioTarget(name string, most float64, s report.Spread, note string) report.Target {
	scatter := fmt.Sprintf("%.2f–%.2f", s.Low, s.High)
	if note != "" {
		note = ", " + note
	}
	return report.Target{Name: name, Bound: most, Got: s.Median, Note: scatter + note}
}

// mostAllocs is the highest of the medians of Weir's rows.
func (r *results) mostAllocs() float64 {
	most := math.NaN()
	for _, t := range r.Tables {
		for _, o := range contenders { // those over HTTP aren't among them: net/http allocates
			if a := t.Row(o.name).Spread(compare.Allocs).Median; o.kind == weirs && !math.IsNaN(a) && !(a <= most) {
				most = a
			}
		}
	}
	return most
}
