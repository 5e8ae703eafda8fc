package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRun goes through everything once, with few keys. It looks at what is there, not at how fast it was.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.json")
	c, err := parse([]string{"-rounds", "2", "-again", "0", "-time", "10ms", "-warmup", "1ms",
		"-keys", "100", "-goroutines", "8", "-clients", "50", "-rival-counters", "100", "-json", file})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := run(t.Context(), c, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{many(c), alone, "Memory", "Targets"} {
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
	if len(written.Workloads) != 2 || len(written.Memory) != len(weighed) {
		t.Errorf("the file has %d workloads and %d weights", len(written.Workloads), len(written.Memory))
	}
	for _, w := range written.Workloads {
		for _, text := range w.Warnings {
			t.Errorf("%s: %s", w.Workload, text)
		}
		if len(w.Rows) != len(contenders) {
			t.Errorf("%s: %d rows", w.Workload, len(w.Rows))
		}
		for _, r := range w.Rows {
			if len(r.PerSecond) != 2 || r.MedianRate == nil || *r.MedianRate <= 0 {
				t.Errorf("%s: %s: %+v", w.Workload, r.Contender, r)
			}
		}
	}
}

func TestInterrupted(t *testing.T) {
	c, err := parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	// Its first line of progress comes when there is a server.
	stderr := writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })
	if _, err := run(ctx, c, io.Discard, stderr); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestRatio: what was refused or failed is never used, what was disturbed only where there is nothing else.
func TestRatio(t *testing.T) {
	ms := func(p50 time.Duration, failed int, others float64) sample {
		return sample{checks: 1, p50: p50 * time.Millisecond, failed: failed, others: others}
	}
	base := &row{samples: []sample{ms(10, 0, 0), ms(30, 0, 0), ms(10, 0, 0), ms(10, 0, 0)}}
	r := &row{samples: []sample{ms(20, 0, 0), ms(60, 0, 0), ms(1, 5, 0), ms(90, 0, 0.5)}}
	if got := r.ratio(base, p50); got.Low != 2 || got.High != 2 {
		t.Errorf("got %v, want 2 alone", got)
	}
	r.samples = r.samples[2:]
	base.samples = base.samples[2:]
	if got := r.ratio(base, p50); got.Low != 9 || got.High != 9 {
		t.Errorf("got %v, want 9 alone", got)
	}
	r.samples = r.samples[:1]
	if got := r.ratio(base, p50); !math.IsNaN(got.Median) {
		t.Errorf("a ratio of failures is %v", got)
	}
	if got := r.ratio(nil, p50); !math.IsNaN(got.Median) {
		t.Errorf("a ratio to nothing is %v", got)
	}
}
