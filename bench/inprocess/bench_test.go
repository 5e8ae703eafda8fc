package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// TestRun goes through everything once, with few keys.
func TestRun(t *testing.T) {
	c, err := parse([]string{"-rounds", "2", "-time", "20ms", "-warmup", "1ms", "-keys", "1000"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	r, err := run(t.Context(), c, &out, io.Discard)
	if err != nil {
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
