// Command faults breaks Redis under load in every way that Weir promises to survive, and prints what clients saw of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"runtime"
	"time"

	"github.com/weirhq/weir/server/bench/faults/lab"
	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/machine"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/internal/cputime"
)

// promised are the figures that a node must keep.
var promised = faults.Bounds{
	Slowest:  100 * time.Millisecond,
	Factor:   2,
	Serving:  time.Second,
	Exact:    time.Second,
	Failover: 5 * time.Second,
	Lost:     100 * time.Millisecond,
}

func main() { command.Main("faults", run) }

// run prints a table of the scenarios that were run, also when it ends early. It returns true if every promise was kept.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (ok bool, err error) {
	f := flag.NewFlagSet("faults", flag.ContinueOnError)
	var only regexp.Regexp
	f.TextVar(&only, "only", regexp.MustCompile(""), "run only scenarios whose name matches this regular expression")
	rate := f.Float64("rate", 5000, "checks a second")
	again := f.Int("again", 2, "repeat a scenario that fails up to this many times while other processes take more than a tenth of the cores")
	verbose := f.Bool("v", false, "show what the store logs")
	if err := f.Parse(args); err != nil {
		return false, err
	}
	c := faults.Config{Rate: *rate, Workers: 512, Budget: 50 * time.Millisecond, Settle: 2 * time.Second}
	if *verbose {
		c.Log = slog.New(slog.NewTextHandler(stderr, nil))
	}
	rows := [][]string{{"fault", "checks", "degraded", "noticed", "exact again", "lost", "slowest", "goroutines", "200", "429", "503", "others", ""}}
	var wrong []string
	for i, s := range faults.Scenarios {
		if !only.MatchString(s.Name) || ctx.Err() != nil {
			continue
		}
		fmt.Fprintf(stderr, "%d/%d %s\n", i+1, len(faults.Scenarios), s.Name)
		a, failed := attempts(ctx, s, c, *again)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", s.Name, failed))
			continue
		}
		r, verdict := a.result, "PASS"
		for _, what := range promised.Judge(r) {
			verdict = "FAIL"
			wrong = append(wrong, s.Name+": "+what)
		}
		rows = append(rows, []string{s.Name, fmt.Sprint(r.Answers), fmt.Sprint(r.Degraded),
			short(r.Noticed), short(r.Exact), short(r.Lost), short(r.Slowest), fmt.Sprintf("%d → %d → %d", r.Before, r.Most, r.After),
			fmt.Sprint(r.Statuses[200]), fmt.Sprint(r.Statuses[429]), fmt.Sprint(r.Statuses[503]), report.Percent(a.others, 0), verdict})
	}
	fmt.Fprintf(stdout, "%.0f checks/s over HTTP, %s a check, %d cores\n\n", c.Rate, c.Budget, runtime.NumCPU())
	report.Align(stdout, rows)
	fmt.Fprint(stdout, legend)
	for _, what := range wrong {
		fmt.Fprintln(stdout, "FAIL", what)
	}
	return len(wrong) == 0, err
}

const legend = `
noticed: time from the fault to the first degraded answer. exact again: time until the last degraded answer, and until
limits were exact, from when Redis was back or, where Sentinels or a Cluster replace a primary, from the fault. lost: how
long the load takes to make the charges that were answered as counted and that no server has any more. slowest: from when
a check was due. goroutines: before, at most, after. others: the share of the cores that other processes used.
`

// attempt is one run of a scenario.
type attempt struct {
	result *faults.Result
	others float64 // the share of the cores that other processes used
}

// attempts runs a scenario again while it fails and other processes take the time that answers should have had.
func attempts(ctx context.Context, s faults.Scenario, c faults.Config, again int) (attempt, error) {
	disturbed := func(a attempt) float64 {
		if len(promised.Judge(a.result)) == 0 {
			return 0
		}
		return a.others
	}
	return machine.Calmest(again, disturbed, func() (attempt, error) {
		before := machine.Read(cputime.Children())
		r, err := faults.Run(ctx, s, c)
		return attempt{r, before.Others(machine.Read(cputime.Children()))}, err
	})
}

func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
