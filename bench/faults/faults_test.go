// Package faults breaks Redis under load in every way that Weir promises to survive, and prints what clients notice.
// Each scenario starts a Redis, a node on it and a steady load over HTTP. It then causes one fault, ends it, and waits
// until limits are exact again. make faults compares the results with what Weir promises; other runs use a low rate and
// lenient bounds.
package faults

import (
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/internal/cputime"
)

var promises = flag.Bool("promises", false, "hold the node to its promises, at the full rate; for a machine that does nothing else")

// promised has the bounds that a node promises to keep.
var promised = bounds{
	slowest:  100 * time.Millisecond,
	factor:   2,
	serving:  time.Second,
	exact:    time.Second,
	failover: 5 * time.Second,
	lost:     100 * time.Millisecond,
}

// lenient bounds are for a busy machine. The store's time budget is lenient, too, since checks that exceed it are degraded.
var lenient = bounds{slowest: 20 * time.Second, factor: 4, serving: 20 * time.Second, exact: patience, failover: patience, lost: patience}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The client of a Cluster sleeps for seconds before it closes connections to a lost server.
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient).redirectOrNew.func1"),
		// It also sleeps before it asks again who owns which hash slot.
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}

// TestScenarios runs one scenario after the other, since each counts this process's goroutines.
func TestScenarios(t *testing.T) {
	limits, c := lenient, config{rate: 200, workers: 32, budget: time.Second, maxHold: 2 * time.Second, settle: 300 * time.Millisecond}
	if *promises {
		limits, c = promised, config{rate: 5000, workers: 512, budget: 50 * time.Millisecond, settle: 2 * time.Second}
	}
	rows := [][]string{heading}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			if !*promises {
				c.log = slog.New(slog.NewTextHandler(t.Output(), nil))
			}
			before, used := compare.ReadMachine(), cputime.Used()+cputime.Children()
			r, err := runScenario(t, s, c)
			if err != nil {
				t.Fatal(err)
			}
			for _, wrong := range limits.judge(r) {
				t.Error(wrong)
			}
			others := before.Others(compare.ReadMachine(), cputime.Used()+cputime.Children()-used)
			rows = append(rows, r.row(others, !t.Failed()))
		})
	}
	var table strings.Builder
	report.Align(&table, rows)
	t.Log(fmt.Sprintf("%.0f checks/s over HTTP, %s a check, %d cores\n\n", c.rate, c.budget, runtime.NumCPU()) + table.String() + legend)
}
