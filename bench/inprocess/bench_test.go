package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRun goes through everything once, with few keys.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.json")
	c, err := parse([]string{"-rounds", "2", "-large-rounds", "1", "-again", "0", "-time", "20ms", "-warmup", "1ms",
		"-keys", "1000", "-large", "5000", "-large-rivals", "-clone", "-json", file})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := run(t.Context(), c, &out, io.Discard); err != nil {
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
	var written struct {
		Results struct {
			Workloads []struct {
				Workload string
				Warnings []string
			}
		}
	}
	if err := json.Unmarshal(text, &written); err != nil {
		t.Fatal(err)
	}
	for _, w := range written.Results.Workloads {
		for _, text := range w.Warnings {
			t.Errorf("%s: %s", w.Workload, text)
		}
	}
	if n := len(written.Results.Workloads); n != 6 {
		t.Errorf("the file has %d workloads, want 6", n)
	}
}
