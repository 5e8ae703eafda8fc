package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
)

// TestRun runs every measurement once, with few keys. It checks that the results are complete, not how fast they are.
func TestRun(t *testing.T) {
	c := &config{Config: compare.Config{Rounds: 2, Time: 50 * time.Millisecond, Warmup: time.Millisecond, Keys: 100},
		goroutines: 8, clients: 50, rivals: 100, timeout: time.Minute}
	c.Register(flag.NewFlagSet("", flag.PanicOnError), "") // registers the default expressions, which match everything
	var out bytes.Buffer
	var r *results
	if err := command.Do(t.Context(), &out, io.Discard, func(m *command.Run) { r = run(m, c) }); err != nil {
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
	c := &config{Config: compare.Config{Rounds: 40, Time: 250 * time.Millisecond, Keys: 100}, goroutines: 256, rivals: 2}
	c.Register(flag.NewFlagSet("", flag.PanicOnError), "")
	ctx, cancel := context.WithCancel(t.Context())
	lines := 0
	stderr := writerFunc(func(p []byte) (int, error) {
		if lines++; lines == len(contenders)+1 { // measuring begins
			time.AfterFunc(10*time.Millisecond, cancel)
		}
		return len(p), nil
	})
	if err := command.Do(ctx, io.Discard, stderr, func(m *command.Run) { run(m, c) }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if lines != len(contenders)+1 {
		t.Errorf("it continued for %d steps after the interrupt", lines)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
