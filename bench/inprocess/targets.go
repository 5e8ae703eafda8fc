package main

import (
	"fmt"
	"math"

	"github.com/weirhq/weir/server/bench/internal/report"
)

// noAllocs leaves room for what the runtime allocates beside the checks.
const noAllocs = 0.0001

// judge holds the results against the targets.
func judge(c *config, r *results) []report.Target {
	var ts []report.Target
	against := func(workload string, most float64) {
		t := r.table(workload)
		fast := t.fastest()
		note := ""
		if fast != nil {
			note = fast.label
		}
		ts = append(ts, ratioTarget(workload+": store / fastest rival", most, t.row(storeName).ratio(fast), note))
	}
	against(uniform(c.keys), 0.7)
	against(zipf(c.keys), 0.75)
	against(hotKey, 1.0)

	small := r.table(uniform(c.keys))
	ts = append(ts,
		ratioTarget(uniform(c.keys)+": whole check / store", 1.5, small.row(checkName).ratio(small.row(storeName)), ""),
		ratioTarget(uniform(c.keys)+": whole check, one amount / whole check", 1.1, small.row(amountName).ratio(small.row(checkName)), ""),
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
		ratioTarget(fmt.Sprintf("store: %s / %s", uniform(c.large), uniform(c.keys)), 1.5,
			t.row(storeName).ratio(t.row(smallStore(c))), "in the same rounds"),
		{Name: "bytes of heap per counter at " + report.Amount(c.large), Bound: 40, Got: f.heap, Note: fmt.Sprintf("the store says %.1f", f.booked)},
		{Name: "bytes per counter, at worst while growing", Bound: 60, Got: f.worst, Note: fmt.Sprintf("heap with its garbage %.1f", f.worstHeap)},
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
	for _, t := range r.tables {
		if t.workload == httpWorkload {
			continue // net/http allocates
		}
		for i := range t.rows {
			if row := &t.rows[i]; row.kind == weirs {
				a := row.allocs().Median
				if math.IsNaN(most) || a > most {
					most = a
				}
			}
		}
	}
	return most
}
