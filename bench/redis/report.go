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
	Slowest    []slowest        `json:"slowest_script_calls"`
	Targets    []report.Target  `json:"targets"`
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

func (r *results) footprint(label string) footprint {
	for _, f := range r.Footprints {
		if f.Contender == label {
			return f
		}
	}
	return footprint{Contender: label, Bytes: math.NaN()}
}

func (r *results) print(w io.Writer, c *config) {
	fmt.Fprintf(w, "%s %s/%s, with Redis on %d cores. %s per measurement after %s of warm-up, %s keys uniform.\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), c.Time, c.Warmup, report.Amount(c.Keys))
	fmt.Fprintln(w, "Medians over the rounds; in brackets the middle half of them. CPU: seconds per million checks. Limits admit every check.")
	for _, t := range r.Tables {
		base := t.Row(redisRate)
		t.Print(w, "",
			compare.Median("checks/s", compare.PerSecond, 0), compare.Range("", compare.PerSecond, 0), compare.Ratio("× redis_rate", base, compare.PerSecond),
			compare.Median("p50 ms", compare.P50, 3), compare.Median("p99 ms", compare.P99, 3), compare.Range("", compare.P99, 3),
			compare.Median("Redis CPU", compare.RedisCPU, 2), compare.Range("", compare.RedisCPU, 2), compare.Ratio("× redis_rate", base, compare.RedisCPU),
			compare.Median("client CPU", compare.CPU, 2))
	}
	printFootprints(w, r.Footprints)
	printHostile(w, r.Slowest, c.long)
	report.PrintTargets(w, r.Targets)
}

func printFootprints(w io.Writer, all []footprint) {
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "\nMemory: bytes of used_memory per counter, key, table and TTL included\n")
	rows := [][]string{{"", "counters", "Redis keys", "bytes", "filled in"}}
	for _, f := range all {
		rows = append(rows, []string{
			f.Contender, report.Amount(f.Counters), report.Amount(int(f.Keys)), report.Number(f.Bytes, 1), report.Number(f.Seconds, 0) + " s",
		})
	}
	report.Align(w, rows)
	fmt.Fprintln(w, "  ten counters: of 10 to 100,000 tokens; large: of 100,000 tokens each. One token was taken from each.")
}
