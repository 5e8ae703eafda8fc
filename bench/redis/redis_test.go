package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRun goes through everything once, with few keys. It looks at what is there, not at how fast it was.
func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	c, err := parse([]string{"-rounds", "2", "-again", "0", "-time", "50ms", "-warmup", "1ms",
		"-keys", "100", "-goroutines", "8", "-clients", "50", "-rival-counters", "100", "-long", "200", "-json", path})
	if err != nil {
		t.Fatal(err)
	}
	c.timeout = time.Minute
	var out bytes.Buffer
	if _, err := run(t.Context(), c, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{many(c), alone, "Memory", hostileName, "Targets"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Results struct {
			Workloads []struct {
				Workload string
				Warnings []string
				Rows     []struct {
					Contender string
					Rounds    map[string][]float64
					Medians   map[string]float64
				}
			}
			Memory  []any
			Slowest []slowest `json:"slowest_script_calls"`
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	written := &file.Results
	if len(written.Workloads) != 2 || len(written.Memory) != 4 || len(written.Slowest) == 0 {
		t.Errorf("the file has %d workloads, %d weights and %d slow calls", len(written.Workloads), len(written.Memory), len(written.Slowest))
	}
	for _, s := range written.Slowest {
		if len(s.Tries) == 0 || slices.Min(s.Tries) <= 0 {
			t.Errorf("%s: %v ms", s.Act, s.Tries)
		}
	}
	for _, w := range written.Workloads {
		for _, text := range w.Warnings {
			t.Errorf("%s: %s", w.Workload, text)
		}
		if len(w.Rows) != len(contenders) {
			t.Errorf("%s: %d rows", w.Workload, len(w.Rows))
		}
		for _, r := range w.Rows {
			if len(r.Rounds["checks_per_second"]) != 2 || r.Medians["checks_per_second"] <= 0 {
				t.Errorf("%s: %s: %+v", w.Workload, r.Contender, r)
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

func TestParseMonitor(t *testing.T) {
	for _, tc := range []struct {
		line string
		want *scriptCall
	}{
		{`+1339518083.107412 [0 127.0.0.1:60866] "EVALSHA" "a94a" "1" "weir{4k}\"" "\x00\xff\r\n\a" "2"` + "\r\n", &scriptCall{"a94a", []string{`weir{4k}"`}, []string{"\x00\xff\r\n\a", "2"}}},
		{`+1339518083.107412 [0 unix:/redis.sock] "evalsha" "a94a" "0"` + "\r\n", &scriptCall{sha: "a94a"}},
		{`+1339518083.107412 [0 lua] "EVALSHA" "a94a" "0"` + "\r\n", nil},
		{`+1339518083.107412 [0 127.0.0.1:60866] "PING"` + "\r\n", nil},
	} {
		c, is, err := parseMonitor(tc.line)
		if err != nil || is != (tc.want != nil) {
			t.Errorf("%q: %v, %v", tc.line, is, err)
		} else if is && (c.sha != tc.want.sha || !slices.Equal(c.keys, tc.want.keys) || !slices.Equal(c.args, tc.want.args)) {
			t.Errorf("%q: %q", tc.line, c)
		}
	}
	for _, line := range []string{`+1 [0 a:1] "EVALSHA" "a" "2" "k"`, `+1 [0 a:1] "EVALSHA`} {
		if c, _, err := parseMonitor(line); err == nil {
			t.Errorf("%q: %q", line, c)
		}
	}
}
