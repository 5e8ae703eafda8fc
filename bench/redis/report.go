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
	slowest    []slowest
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

func (r *results) footprint(label string) footprint {
	for _, f := range r.footprints {
		if f.label == label {
			return f
		}
	}
	return footprint{label: label, bytes: math.NaN()}
}

func (r *results) print(w io.Writer, c *config) {
	fmt.Fprintf(w, "%s %s/%s, with Redis on %d cores. %s per measurement after %s of warm-up, %s keys uniform.\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), c.time, c.warmup, report.Amount(c.keys))
	fmt.Fprintln(w, "Medians over the rounds; in brackets the middle half of them. CPU: seconds per million checks. Limits admit every check.")
	for i := range r.tables {
		r.tables[i].print(w)
	}
	printFootprints(w, r.footprints)
	printHostile(w, r.slowest, c.long)
	report.PrintTargets(w, r.targets)
}

func (t *table) print(w io.Writer) {
	if len(t.rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s, rounds: %d\n", t.workload, len(t.rows[0].samples))
	rows := [][]string{{"", "checks/s", "", "× redis_rate", "p50 ms", "p99 ms", "", "Redis CPU", "", "× redis_rate", "client CPU"}}
	base := t.row(redisRate)
	for i := range t.rows {
		r := &t.rows[i]
		rate, late, cpu := r.spread(perSecond), r.spread(p99), r.spread(redisCPU)
		rows = append(rows, []string{
			r.label, report.Number(rate.Median, 0), rate.Range(0), report.Number(r.ratio(base, perSecond).Median, 2),
			report.Number(r.spread(p50).Median, 3), report.Number(late.Median, 3), late.Range(3),
			report.Number(cpu.Median, 2), cpu.Range(2), report.Number(r.ratio(base, redisCPU).Median, 2),
			report.Number(r.spread(clientCPU).Median, 2),
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
		for i := range r.samples {
			if !r.samples[i].calm() {
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
	fmt.Fprint(w, "\nMemory: bytes of used_memory per counter, key, table and TTL included\n")
	rows := [][]string{{"", "counters", "Redis keys", "bytes", "filled in"}}
	for _, f := range fs {
		rows = append(rows, []string{
			f.label, report.Amount(f.counters), report.Amount(int(f.keys)), report.Number(f.bytes, 1), report.Number(f.seconds, 0) + " s",
		})
	}
	report.Align(w, rows)
	fmt.Fprintln(w, "  ten counters: of 10 to 100,000 tokens; large: of 100,000 tokens each. One token was taken from each.")
}
