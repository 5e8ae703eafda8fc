package main

import (
	"bytes"
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
)

// TestRun runs every measurement once, with few keys.
func TestRun(t *testing.T) {
	c := &compare.Config{Rounds: 2, Time: 20 * time.Millisecond, Warmup: time.Millisecond, Keys: 1000}
	c.Register(flag.NewFlagSet("", flag.PanicOnError), "") // registers the default expressions, which match everything
	var out bytes.Buffer
	var r *results
	if err := command.Do(t.Context(), &out, io.Discard, func(m *command.Run) { r = run(m, c) }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{hotKey, uniform(1000), zipf(1000), overHTTP, "Memory", "Targets"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	for _, table := range r.tables {
		for _, text := range table.Warnings {
			t.Errorf("%s: %s", table.Workload, text)
		}
	}
	if n := len(r.tables); n != 4 {
		t.Errorf("there are %d workloads, want 4", n)
	}
}
