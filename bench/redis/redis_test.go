package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/server/bench/internal/compare"
)

// TestRun goes through everything once, with few keys. It looks at what is there, not at how fast it was.
func TestRun(t *testing.T) {
	c, err := parse([]string{"-rounds", "2", "-time", "50ms", "-warmup", "1ms",
		"-keys", "100", "-goroutines", "8", "-clients", "50", "-rival-counters", "100"})
	if err != nil {
		t.Fatal(err)
	}
	c.timeout = time.Minute
	var out bytes.Buffer
	r, err := run(t.Context(), c, &out, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{many(c), alone, "Memory", "Targets"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if len(r.tables) != 2 || len(r.footprints) != 4 {
		t.Errorf("there are %d workloads and %d weights", len(r.tables), len(r.footprints))
	}
	for _, table := range r.tables {
		for _, text := range table.Warnings {
			t.Errorf("%s: %s", table.Workload, text)
		}
		if len(table.Rows) != len(contenders) {
			t.Errorf("%s: %d rows", table.Workload, len(table.Rows))
		}
		for _, row := range table.Rows {
			if len(row.Samples) != 2 || !(row.Spread(compare.PerSecond).Median > 0) {
				t.Errorf("%s: %s: %+v", table.Workload, row.Name, row)
			}
		}
	}
}

func TestInterrupted(t *testing.T) {
	c, err := parse([]string{"-keys", "100", "-clients", "0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	lines := 0
	stderr := writerFunc(func(p []byte) (int, error) {
		if lines++; lines == len(contenders)+1 { // measuring begins
			time.AfterFunc(10*time.Millisecond, cancel)
		}
		return len(p), nil
	})
	if _, err := run(ctx, c, io.Discard, stderr); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if lines != len(contenders)+1 {
		t.Errorf("it went on for %d steps", lines)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
