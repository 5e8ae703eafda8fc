package main

import (
	"encoding/json"
	"math"
	"os"
	"runtime"

	"github.com/weirhq/weir/server/bench/internal/report"
)

// The shape of the -json file. Arrays are by round; null is what wasn't measured.
type (
	jsonResults struct {
		Go        string              `json:"go"`
		Platform  string              `json:"platform"`
		Keys      int                 `json:"keys"`
		Seconds   float64             `json:"seconds_per_measurement"`
		Workloads []jsonTable         `json:"workloads"`
		Memory    []jsonFootprint     `json:"memory"`
		Slowest   []jsonSlowest       `json:"slowest_script_calls"`
		Targets   []report.JSONTarget `json:"targets"`
	}
	jsonSlowest struct {
		Act   string    `json:"act"`
		Tries []float64 `json:"ms"`
	}
	jsonTable struct {
		Workload   string    `json:"workload"`
		Goroutines int       `json:"goroutines"`
		Rows       []jsonRow `json:"rows"`
		Warnings   []string  `json:"warnings,omitempty"`
	}
	jsonRow struct {
		Contender   string    `json:"contender"`
		PerSecond   []float64 `json:"checks_per_second"`
		P50         []float64 `json:"p50_ms"`
		P99         []float64 `json:"p99_ms"`
		RedisCPU    []float64 `json:"redis_cpu_s_per_million"`
		ClientCPU   []float64 `json:"client_cpu_s_per_million"`
		Others      []float64 `json:"other_processes"`
		Failed      []float64 `json:"failed"`
		MedianRate  *float64  `json:"median_checks_per_second"`
		TimesRate   *float64  `json:"times_redis_rate_checks"`
		TimesCPU    *float64  `json:"times_redis_rate_cpu"`
		TimesP99    *float64  `json:"times_redis_rate_p99"`
		TimesBare50 *float64  `json:"times_bare_p50"`
	}
	jsonFootprint struct {
		Contender string  `json:"contender"`
		Counters  int     `json:"counters"`
		Keys      int64   `json:"redis_keys"`
		Bytes     float64 `json:"bytes_per_counter"`
	}
)

func (r *results) writeJSON(path string, c *config) error {
	out := jsonResults{
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Keys: c.keys, Seconds: c.time.Seconds(),
	}
	for i := range r.tables {
		out.Workloads = append(out.Workloads, r.tables[i].json())
	}
	for _, f := range r.footprints {
		out.Memory = append(out.Memory, jsonFootprint{f.label, f.counters, f.keys, f.bytes})
	}
	for _, s := range r.slowest {
		out.Slowest = append(out.Slowest, jsonSlowest{s.what, s.tries})
	}
	for i := range r.targets {
		out.Targets = append(out.Targets, r.targets[i].JSON())
	}
	text, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

func (t *table) json() jsonTable {
	out := jsonTable{Workload: t.workload, Goroutines: t.goroutines, Warnings: t.warnings}
	base, bare := t.row(redisRate), t.row(bareName)
	for i := range t.rows {
		r := &t.rows[i]
		out.Rows = append(out.Rows, jsonRow{
			Contender:   r.label,
			PerSecond:   r.all(perSecond),
			P50:         r.all(p50),
			P99:         r.all(p99),
			RedisCPU:    r.all(redisCPU),
			ClientCPU:   r.all(clientCPU),
			Others:      r.all(func(s *sample) float64 { return s.others }),
			Failed:      r.all(func(s *sample) float64 { return float64(s.failed) }),
			MedianRate:  report.Known(r.spread(perSecond).Median),
			TimesRate:   report.Known(r.ratio(base, perSecond).Median),
			TimesCPU:    report.Known(r.ratio(base, redisCPU).Median),
			TimesP99:    report.Known(r.ratio(base, p99).Median),
			TimesBare50: report.Known(r.ratio(bare, p50).Median),
		})
	}
	return out
}

// all is a figure in every round, or nil if it is unknown.
func (r *row) all(f figure) []float64 {
	xs := make([]float64, len(r.samples))
	for i := range r.samples {
		if xs[i] = f(&r.samples[i]); math.IsNaN(xs[i]) {
			return nil
		}
	}
	return xs
}
