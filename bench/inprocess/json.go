package main

import (
	"encoding/json"
	"os"
	"runtime"

	"github.com/weirhq/weir/server/bench/internal/report"
)

// The shape of the -json file. Arrays are by round; null is what wasn't measured.
type (
	jsonResults struct {
		Go         string              `json:"go"`
		Platform   string              `json:"platform"`
		Goroutines int                 `json:"goroutines"`
		Seconds    float64             `json:"seconds_per_measurement"`
		Workloads  []jsonTable         `json:"workloads"`
		Memory     []jsonFootprint     `json:"memory"`
		Targets    []report.JSONTarget `json:"targets"`
	}
	jsonTable struct {
		Workload string    `json:"workload"`
		Rows     []jsonRow `json:"rows"`
		Warnings []string  `json:"warnings,omitempty"`
	}
	jsonRow struct {
		Contender    string    `json:"contender"`
		NS           []float64 `json:"ns"`
		CPU          []float64 `json:"cpu_ns"`
		Allocs       []float64 `json:"allocs"`
		Others       []float64 `json:"other_processes"`
		MedianNS     *float64  `json:"median_ns"`
		TimesStore   *float64  `json:"times_weir_store"`
		TimesFastest *float64  `json:"times_fastest_rival"`
	}
	jsonFootprint struct {
		Contender string  `json:"contender"`
		Keys      int     `json:"keys"`
		Heap      float64 `json:"heap_bytes_per_key"`
		Booked    float64 `json:"booked_bytes_per_counter,omitempty"`
		Worst     float64 `json:"worst_booked_bytes_per_counter,omitempty"`
		WorstHeap float64 `json:"worst_heap_bytes_per_counter,omitempty"`
	}
)

func (r *results) writeJSON(path string, c *config) error {
	out := jsonResults{
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Goroutines: runtime.GOMAXPROCS(0), Seconds: c.time.Seconds(),
	}
	for i := range r.tables {
		out.Workloads = append(out.Workloads, r.tables[i].json())
	}
	for _, f := range r.footprints {
		out.Memory = append(out.Memory, jsonFootprint{f.label, f.keys, f.heap, f.booked, f.worst, f.worstHeap})
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
	out := jsonTable{Workload: t.workload, Warnings: t.warnings}
	store, fast := t.row(storeName), t.fastest()
	for i := range t.rows {
		r := &t.rows[i]
		out.Rows = append(out.Rows, jsonRow{
			Contender:    r.label,
			NS:           r.each(func(s sample) float64 { return s.ns }),
			CPU:          r.each(func(s sample) float64 { return s.cpu }),
			Allocs:       r.each(func(s sample) float64 { return s.allocs }),
			Others:       r.each(func(s sample) float64 { return s.others }),
			MedianNS:     report.Known(r.ns().Median),
			TimesStore:   report.Known(r.ratio(store).Median),
			TimesFastest: report.Known(r.ratio(fast).Median),
		})
	}
	return out
}
