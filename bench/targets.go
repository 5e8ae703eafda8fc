package main

import (
	"fmt"
	"math"
)

// target is a promise and what was measured.
type target struct {
	name string
	most float64
	got  float64 // NaN if it wasn't measured
	note string
}

func (t *target) verdict() string {
	switch {
	case math.IsNaN(t.got):
		return "not measured"
	case t.got <= t.most:
		return "PASS"
	}
	return "FAIL"
}

// noAllocs leaves room for what the runtime allocates beside the checks.
const noAllocs = 0.0001

// judge holds the results against the targets.
func judge(c *config, r *results) []target {
	var ts []target
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
	against(zipf(c.keys), 0.7)
	against(hotKey, 1.0)

	small := r.table(uniform(c.keys))
	ts = append(ts,
		ratioTarget(uniform(c.keys)+": whole check / store", 1.5, small.row(checkName).ratio(small.row(storeName)), ""),
		target{"allocations per check, store and whole check", noAllocs, r.mostAllocs(), "the runtime's own included"})
	if c.large > 0 {
		ts = append(ts, largeTargets(c, r)...)
	}
	for i := range ts {
		if math.IsNaN(ts[i].got) {
			ts[i].note = ""
		}
	}
	return ts
}

// largeTargets are those that need many keys.
func largeTargets(c *config, r *results) []target {
	t, f := r.table(uniform(c.large)), r.footprint(storeName, c.large)
	return []target{
		ratioTarget(fmt.Sprintf("store: %s / %s", uniform(c.large), uniform(c.keys)), 1.5,
			t.row(storeName).ratio(t.row(smallStore(c))), "in the same rounds"),
		{"bytes of heap per counter at " + amount(c.large), 40, f.heap, fmt.Sprintf("the store says %.1f", f.booked)},
		{"bytes per counter, at worst while growing", 60, f.worst, fmt.Sprintf("heap with its garbage %.1f", f.worstHeap)},
	}
}

func ratioTarget(name string, most float64, s spread, note string) target {
	scatter := fmt.Sprintf("%.2f–%.2f", s.low, s.high)
	if note != "" {
		note = ", " + note
	}
	return target{name, most, s.median, scatter + note}
}

// mostAllocs is the highest of the medians of Weir's rows.
func (r *results) mostAllocs() float64 {
	most := math.NaN()
	for _, t := range r.tables {
		for i := range t.rows {
			if row := &t.rows[i]; row.kind == weirs {
				a := row.allocs().median
				if math.IsNaN(most) || a > most {
					most = a
				}
			}
		}
	}
	return most
}
