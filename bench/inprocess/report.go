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
	tables     compare.Tables
	footprints []footprint
	targets    []report.Target
}

// fastest returns the rival with the lowest median time, or nil.
func fastest(t *compare.Table) (best *compare.Row) {
	for _, o := range contenders {
		if r := t.Row(o.name); o.kind == rival && r != nil &&
			(best == nil || r.Spread(compare.Nanoseconds).Median < best.Spread(compare.Nanoseconds).Median) {
			best = r
		}
	}
	return best
}

func (r *results) print(w io.Writer, c *compare.Config) {
	fmt.Fprintf(w, "%s %s/%s, %d goroutines on %d cores, %s per measurement after %s of warm-up.\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), runtime.NumCPU(), c.Time, c.Warmup)
	fmt.Fprintln(w, "ns: wall time per check, all goroutines together. CPU ns: of all cores, garbage collection included.")
	fmt.Fprintln(w, "Ratios are medians of the ratios within each round; of many rounds, ranges show the middle half. Limits admit every check.")
	for _, t := range r.tables {
		head, base, rival := "× Allow", t.Row(allowName), fastest(t)
		if t.Workload == overHTTP {
			head, base, rival = "× without", t.Row(bareName), t.Row(httprateName)
		}
		t.Print(w, "",
			compare.Median("ns", compare.Nanoseconds, 0), compare.Range("range", compare.Nanoseconds, 0),
			compare.Ratio(head, base, compare.Nanoseconds),
			compare.Ratio("× fastest rival", rival, compare.Nanoseconds),
			compare.Median("CPU ns", func(s *compare.Sample) float64 { return 1e3 * compare.CPU(s) }, 0),
			compare.Column{Head: "allocs", Cell: func(r *compare.Row) string { return allocs(r.Spread(compare.Allocs).Median) }})
	}
	printFootprints(w, r.footprints)
	report.PrintTargets(w, r.targets)
}

func allocs(x float64) string {
	if x < noAllocs {
		return "0"
	}
	return report.Number(x, 2)
}

// noAllocs is the number of allocations per check that counts as none, since the runtime allocates,
// too.
const noAllocs = 0.0001

// judge compares the results with the targets.
func judge(c *compare.Config, r *results) []report.Target {
	var ts []report.Target
	against := func(workload string, most float64) {
		t := r.tables.Of(workload)
		fast := fastest(t)
		note := ""
		if fast != nil {
			note = fast.Name
		}
		ts = append(ts, ratioTarget(workload+": Allow / fastest rival", most, t.Row(allowName).Ratio(fast, compare.Nanoseconds), note))
	}
	against(uniform(c.Keys), 0.75)
	against(zipf(c.Keys), 0.75)
	against(hotKey, 1.0)

	for _, workload := range []string{uniform(c.Keys), zipf(c.Keys)} {
		t := r.tables.Of(workload)
		for _, name := range []string{oneName, checkName} {
			ts = append(ts, ratioTarget(workload+": "+name+" / Allow", 1.35, t.Row(name).Ratio(t.Row(allowName), compare.Nanoseconds), ""))
		}
	}
	web := r.tables.Of(overHTTP)
	middleware := web.Row(middlewareName)
	ts = append(ts,
		ratioTarget(overHTTP+": a request through the middleware / without", 1.18, middleware.Ratio(web.Row(bareName), compare.Nanoseconds), ""),
		ratioTarget(overHTTP+": a request through the middleware / through httprate's", 1, middleware.Ratio(web.Row(httprateName), compare.Nanoseconds), ""))
	t := r.tables.Of(uniform(c.Keys))
	ts = append(ts,
		ratioTarget(uniform(c.Keys)+": check with an amount / without", 1.1, t.Row(amountName).Ratio(t.Row(checkName), compare.Nanoseconds), ""),
		report.Target{Name: "allocations per check, Allow and by rules", Bound: noAllocs, Got: r.mostAllocs(), Digits: 5, Note: "the runtime's own included"})
	for _, f := range r.footprints {
		if f.contender == allowName {
			ts = append(ts,
				report.Target{Name: "bytes of heap per counter at " + report.Amount(f.keys), Bound: 40, Got: f.heap, Note: fmt.Sprintf("the store says %.1f", f.reported)},
				report.Target{Name: "bytes per counter, at worst while growing", Bound: 60, Got: f.worst, Note: fmt.Sprintf("heap with its garbage %.1f", f.worstHeap)})
		}
	}
	return ts
}

func ratioTarget(name string, most float64, s report.Spread, note string) report.Target {
	scatter := fmt.Sprintf("%.2f–%.2f", s.Low, s.High)
	if note != "" {
		note = ", " + note
	}
	return report.Target{Name: name, Bound: most, Got: s.Median, Note: scatter + note}
}

// mostAllocs returns the highest median among Weir's rows.
func (r *results) mostAllocs() float64 {
	most := math.NaN()
	for _, t := range r.tables {
		for _, o := range contenders {
			if a := t.Row(o.name).Spread(compare.Allocs).Median; o.kind == weirs && !math.IsNaN(a) && !(a <= most) {
				most = a
			}
		}
	}
	return most
}
