package main

import (
	"io"
	"os"
	"testing"

	"github.com/weirhq/weir/bench/internal/report"
	"github.com/weirhq/weir/bench/internal/workload"
)

// httpRun measures the HTTP workload alone.
func httpRun(tb testing.TB, progressTo io.Writer, args ...string) *results {
	tb.Helper()
	c, err := parse(args)
	if err != nil {
		tb.Fatal(err)
	}
	s := httpStage(c)
	p := report.NewProgress(progressTo, s.rounds*len(s.entries))
	tables, err := s.run(c, workload.MakeKeys(c.keys), p)
	if err != nil {
		tb.Fatal(err)
	}
	r := &results{tables: tables}
	r.targets = httpTargets(r)
	return r
}

func TestHTTP(t *testing.T) {
	r := httpRun(t, io.Discard, "-rounds", "2", "-again", "0", "-time", "10ms", "-warmup", "1ms", "-keys", "1000")
	tab := r.table(httpWorkload)
	for _, w := range tab.warnings {
		t.Error(w)
	}
	if len(tab.rows) != 4 || len(r.targets) != 3 {
		t.Errorf("%d rows and %d targets", len(tab.rows), len(r.targets))
	}
	for _, target := range r.targets {
		if target.Verdict() == "not measured" {
			t.Errorf("%s wasn't measured", target.Name)
		}
	}
	tab.printHTTP(io.Discard)
}

// BenchmarkHTTP prints a table of its own: go test -run '^$' -bench HTTP. It takes two minutes, half of them to fill stores.
func BenchmarkHTTP(b *testing.B) {
	r := httpRun(b, os.Stderr, "-rounds", "7")
	r.table(httpWorkload).printHTTP(os.Stdout)
	report.PrintTargets(os.Stdout, r.targets)
}
