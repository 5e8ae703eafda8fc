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
	if n := len(written.Workloads); n != 5 {
		t.Errorf("the file has %d workloads, want 5", n)
	}
}

// TestRatio: the machine slowed down threefold in the second round, which no ratio may show.
func TestRatio(t *testing.T) {
	base := &row{samples: []sample{{ns: 100}, {ns: 300}, {ns: 110}}}
	r := &row{samples: []sample{{ns: 50}, {ns: 150}, {ns: 66}}}
	if got := r.ratio(base); got != (spread{0.5, 0.5, 0.6}) {
		t.Errorf("got %v", got)
	}
	if got := r.ratio(nil); !math.IsNaN(got.median) {
		t.Errorf("a ratio to nothing is %v", got)
	}
}

// TestDisturbed: what others disturbed counts only when there is nothing else.
func TestDisturbed(t *testing.T) {
	base := &row{samples: []sample{{ns: 100}, {ns: 100}}}
	r := &row{samples: []sample{{ns: 900, others: 0.5}, {ns: 50}}}
	if got := r.ratio(base); got.high != 0.5 {
		t.Errorf("ratio %v, want 0.5 alone", got)
	}
	if got := r.ns(); got.high != 50 {
		t.Errorf("ns %v, want 50 alone", got)
	}
	r.samples = r.samples[:1]
	if got := r.ratio(base); got.median != 9 {
		t.Errorf("ratio %v, want 9", got)
	}
}

func TestSpread(t *testing.T) {
	if got := spreadOf([]float64{4, 1, math.NaN(), 3, 2}); got != (spread{2.5, 1, 4}) {
		t.Errorf("got %v", got)
	}
}

func TestKeys(t *testing.T) {
	k := makeKeys(1000)
	seen := map[string]bool{}
	for i := range uint32(1000) {
		seen[k.at(i)] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d different keys, want 1000", len(seen))
	}
	if got, want := k.at(0), "sk_prod_e220a8397b1dcdaf"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSequences(t *testing.T) {
	for name, s := range map[string]sequence{"uniform": uniformSequence(1000), "zipf": zipfSequence(1000, 1.1)} {
		if n := len(s); n&(n-1) != 0 {
			t.Errorf("%s: length %d is no power of two", name, n)
		}
		for _, i := range s {
			if i >= 1000 {
				t.Fatalf("%s: key %d of 1000", name, i)
			}
		}
	}
}

func TestAmount(t *testing.T) {
	for n, want := range map[int]string{37: "37", 5000: "5 k", 1_000_000: "1 M", 2_500_000: "2.5 M", 10_000_000: "10 M"} {
		if got := amount(n); got != want {
			t.Errorf("amount(%d) = %s, want %s", n, got, want)
		}
	}
}
