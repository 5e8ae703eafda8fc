package main

import (
	"fmt"
	"io"
	"math"
	"runtime"

	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
)

// results holds everything that was measured.
type results struct {
	Tables     []*compare.Table `json:"workloads"`
	Footprints []footprint      `json:"memory"`
	Targets    []report.Target  `json:"targets"`
}

// settings say how the results in a JSON file were measured.
func (c *config) settings() map[string]any {
	return map[string]any{"goroutines": runtime.GOMAXPROCS(0), "keys": c.Keys, "seconds_per_measurement": c.Time.Seconds()}
}

// table finds a workload's table; nil if it wasn't measured.
func (r *results) table(workload string) *compare.Table {
	for _, t := range r.Tables {
		if t.Workload == workload {
			return t
		}
	}
	return nil
}

func (r *results) footprint(label string, keys int) footprint {
	for _, f := range r.Footprints {
		if f.Contender == label && f.Keys == keys {
			return f
		}
	}
	nan := math.NaN()
	return footprint{label, keys, nan, nan, nan, nan}
}

// fastest is the rival with the lowest median, or nil.
func fastest(t *compare.Table) (best *compare.Row) {
	for _, o := range contenders {
		if r := t.Row(o.name); o.kind == rival && r != nil &&
			(best == nil || r.Spread(compare.Nanoseconds).Median < best.Spread(compare.Nanoseconds).Median) {
			best = r
		}
	}
	return best
}

func (r *results) print(w io.Writer, c *config) {
	fmt.Fprintf(w, "%s %s/%s, %d goroutines on %d cores, %s per measurement after %s of warm-up.\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), runtime.NumCPU(), c.Time, c.Warmup)
	fmt.Fprintln(w, "ns: wall time per check, all goroutines together. CPU ns: of all cores, garbage collection included.")
	fmt.Fprintln(w, "Ratios are medians of the ratios within each round; of many rounds, ranges show the middle half. Limits admit every")
	fmt.Fprintln(w, "check, unless the workload is one of refusals.")
	allocations := compare.Column{Head: "allocs", Cell: func(r *compare.Row) string { return allocs(r.Spread(compare.Allocs).Median) }}
	for _, t := range r.Tables {
		if t.Workload == httpWorkload {
			printHTTP(w, t, allocations)
			continue
		}
		t.Print(w, "",
			compare.Median("ns", compare.Nanoseconds, 0), compare.Range("range", compare.Nanoseconds, 0),
			compare.Ratio("× Weir store", t.Row(storeName), compare.Nanoseconds),
			compare.Ratio("× fastest rival", fastest(t), compare.Nanoseconds),
			compare.Median("CPU ns", func(s *compare.Sample) float64 { return 1e3 * compare.CPU(s) }, 0), allocations)
	}
	printFootprints(w, r.Footprints)
	report.PrintTargets(w, r.Targets)
}

func printFootprints(w io.Writer, all []footprint) {
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "\nMemory: bytes of live heap per key, the key's 24 bytes included where the limiter keeps them\n")
	rows := [][]string{{"", "keys", "heap", "reported", "worst reported", "worst heap"}}
	for _, f := range all {
		row := []string{f.Contender, report.Amount(f.Keys), report.Number(f.Heap, 1), "–", "–", "–"}
		if f.Reported > 0 {
			row = append(row[:3], report.Number(f.Reported, 1), report.Number(f.Worst, 1), report.Number(f.WorstHeap, 1))
		}
		rows = append(rows, row)
	}
	report.Align(w, rows)
	fmt.Fprintf(w, "  reported: by the store itself. worst: the most per counter while the store grew beyond %s counters; heap with its garbage.\n", report.Amount(firstLook))
}

func allocs(x float64) string {
	if x < noAllocs {
		return "0"
	}
	return report.Number(x, 2)
}
