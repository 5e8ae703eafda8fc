package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/server/bench/internal/report"
)

// TestRun goes through everything once, with few keys.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.json")
	c, err := parse([]string{"-rounds", "2", "-large-rounds", "1", "-again", "0", "-time", "2ms", "-warmup", "1ms",
		"-keys", "1000", "-large", "5000", "-large-rivals", "-clone", "-json", file})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := run(c, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{hotKey, refused, uniform(1000), zipf(1000), uniform(5000), "Memory", "Targets"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var written jsonResults
	if err := json.Unmarshal(text, &written); err != nil {
		t.Fatal(err)
	}
	for _, w := range written.Workloads {
		for _, text := range w.Warnings {
			t.Errorf("%s: %s", w.Workload, text)
		}
	}
	if n := len(written.Workloads); n != 6 {
		t.Errorf("the file has %d workloads, want 6", n)
	}
}

// TestRatio: the machine slowed down threefold in the second round, which no ratio may show.
func TestRatio(t *testing.T) {
	base := &row{samples: []sample{{ns: 100}, {ns: 300}, {ns: 110}}}
	r := &row{samples: []sample{{ns: 50}, {ns: 150}, {ns: 66}}}
	if got := r.ratio(base); got != (report.Spread{Median: 0.5, Low: 0.5, High: 0.6}) {
		t.Errorf("got %v", got)
	}
	if got := r.ratio(nil); !math.IsNaN(got.Median) {
		t.Errorf("a ratio to nothing is %v", got)
	}
}

// TestDisturbed: what others disturbed counts only when there is nothing else.
func TestDisturbed(t *testing.T) {
	base := &row{samples: []sample{{ns: 100}, {ns: 100}}}
	r := &row{samples: []sample{{ns: 900, others: 0.5}, {ns: 50}}}
	if got := r.ratio(base); got.High != 0.5 {
		t.Errorf("ratio %v, want 0.5 alone", got)
	}
	if got := r.ns(); got.High != 50 {
		t.Errorf("ns %v, want 50 alone", got)
	}
	r.samples = r.samples[:1]
	if got := r.ratio(base); got.Median != 9 {
		t.Errorf("ratio %v, want 9", got)
	}
}
