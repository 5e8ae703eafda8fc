package main

import (
	"fmt"
	"io"
	"math"
	"runtime"

	"github.com/weirhq/weir/server/bench/internal/report"
)

// results is all that was measured.
type results struct {
	tables     []table
	footprints []footprint
	targets    []report.Target
}

// table finds a workload's table; an empty one if it wasn't measured.
func (r *results) table(workload string) *table {
	for i := range r.tables {
		if r.tables[i].workload == workload {
			return &r.tables[i]
		}
	}
	return &table{}
}

func (r *results) footprint(label string, keys int) footprint {
	for _, f := range r.footprints {
		if f.label == label && f.keys == keys {
			return f
		}
	}
	nan := math.NaN()
	return footprint{label, keys, nan, nan, nan, nan}
}

func (r *results) print(w io.Writer, c *config) {
	fmt.Fprintf(w, "%s %s/%s, %d goroutines on %d cores, %s per measurement after %s of warm-up.\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), runtime.NumCPU(), c.time, c.warmup)
	fmt.Fprintln(w, "ns: wall time per check, all goroutines together. CPU ns: of all cores, garbage collection included.")
	fmt.Fprintln(w, "Ratios are medians of the ratios within each round. Limits admit every check, except where it says refused.")
	for i := range r.tables {
		if t := &r.tables[i]; t.workload == httpWorkload {
			t.printHTTP(w)
		} else {
			t.print(w)
		}
	}
	printFootprints(w, r.footprints)
	report.PrintTargets(w, r.targets)
}

func (t *table) print(w io.Writer) {
	store, fast := t.row(storeName), t.fastest()
	fmt.Fprintf(w, "\n%s, rounds: %d\n", t.workload, len(t.rows[0].samples))
	rows := [][]string{{"", "ns", "range", "× Weir store", "× fastest rival", "CPU ns", "allocs"}}
	for i := range t.rows {
		r := &t.rows[i]
		ns := r.ns()
		rows = append(rows, []string{
			r.label, report.Number(ns.Median, 0), ns.Range(0),
			report.Number(r.ratio(store).Median, 2), report.Number(r.ratio(fast).Median, 2),
			report.Number(r.cpu().Median, 0), allocs(r.allocs().Median),
		})
	}
	report.Align(w, rows)
	if n := t.disturbed(); n > 0 {
		fmt.Fprintf(w, "  ! disturbed, and left out where others are left: %d of %d measurements\n", n, len(t.rows)*len(t.rows[0].samples))
	}
	for _, s := range t.warnings {
		fmt.Fprintln(w, "  ! "+s)
	}
}

// disturbed counts the measurements that never got the cores to themselves.
func (t *table) disturbed() (n int) {
	for _, r := range t.rows {
		for _, s := range r.samples {
			if !s.calm() {
				n++
			}
		}
	}
	return n
}

func printFootprints(w io.Writer, fs []footprint) {
	if len(fs) == 0 {
		return
	}
	fmt.Fprint(w, "\nMemory: bytes of live heap per key, the key's 24 bytes included where the limiter keeps them\n")
	rows := [][]string{{"", "keys", "heap", "booked", "worst booked", "worst heap"}}
	for _, f := range fs {
		row := []string{f.label, report.Amount(f.keys), report.Number(f.heap, 1), "–", "–", "–"}
		if f.booked > 0 {
			row = append(row[:3], report.Number(f.booked, 1), report.Number(f.worst, 1), report.Number(f.worstHeap, 1))
		}
		rows = append(rows, row)
	}
	report.Align(w, rows)
	fmt.Fprintf(w, "  booked: what the store says. worst: the most per counter while it grew, from %s counters on; heap with its garbage.\n", report.Amount(firstLook))
}

func allocs(x float64) string {
	if x < noAllocs {
		return "0"
	}
	return report.Number(x, 2)
}
