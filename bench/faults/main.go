// Command faults breaks Redis under load in every way that Weir promises to survive, and prints what clients saw of it.
// Each of the scenarios starts a Redis, a node on it and a steady load over HTTP, causes one fault, ends it, and waits until
// limits are exact again. Tests run them too, at a low rate and with time to spare.
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

	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/machine"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/internal/cputime"
)

// promised are the figures that a node must keep.
var promised = bounds{
	slowest:  100 * time.Millisecond,
	factor:   2,
	serving:  time.Second,
	exact:    time.Second,
	failover: 5 * time.Second,
	lost:     100 * time.Millisecond,
}

func main() { command.Main("faults", run) }

// run prints a table of the scenarios that were run, also when it ends early. It returns true if every promise was kept.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (ok bool, err error) {
	f := flag.NewFlagSet("faults", flag.ContinueOnError)
	var only regexp.Regexp
	f.TextVar(&only, "only", regexp.MustCompile(""), "run only scenarios whose name matches this regular expression")
	rate := f.Float64("rate", 5000, "checks a second")
	verbose := f.Bool("v", false, "show what the store logs")
	if err := f.Parse(args); err != nil {
		return false, err
	}
	c := config{rate: *rate, workers: 512, budget: 50 * time.Millisecond, settle: 2 * time.Second}
	if *verbose {
		c.log = slog.New(slog.NewTextHandler(stderr, nil))
	}
	rows := [][]string{{"fault", "checks", "degraded", "noticed", "exact again", "lost", "slowest", "goroutines", "200", "429", "503", "others", ""}}
	var wrong []string
	for i, s := range scenarios {
		if !only.MatchString(s.name) || ctx.Err() != nil {
			continue
		}
		fmt.Fprintf(stderr, "%d/%d %s\n", i+1, len(scenarios), s.name)
		before, used := machine.Read(), cputime.Used()+cputime.Children()
		r, failed := runScenario(ctx, s, c)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", s.name, failed))
			continue
		}
		others := before.Others(machine.Read(), cputime.Used()+cputime.Children()-used)
		verdict := "PASS"
		for _, what := range promised.judge(r) {
			verdict = "FAIL"
			wrong = append(wrong, s.name+": "+what)
		}
		rows = append(rows, []string{s.name, fmt.Sprint(r.answers), fmt.Sprint(r.degraded),
			short(r.noticed), short(r.exact), short(r.lost), short(r.slowest), fmt.Sprintf("%d → %d → %d", r.before, r.most, r.after),
			fmt.Sprint(r.statuses[200]), fmt.Sprint(r.statuses[429]), fmt.Sprint(r.statuses[503]), report.Percent(others, 0), verdict})
	}
	fmt.Fprintf(stdout, "%.0f checks/s over HTTP, %s a check, %d cores\n\n", c.rate, c.budget, runtime.NumCPU())
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
a check was due. goroutines: before, at most, after. others: the share of the cores that other processes used;
with more than a tenth, a FAIL may be theirs.
`

func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
