// Faults breaks Redis in every way that Weir promises to survive, under load, and prints what clients saw of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/weirhq/weir/server/bench/faults/lab"
	"github.com/weirhq/weir/server/bench/internal/machine"
	"github.com/weirhq/weir/server/internal/cputime"
)

// promised are the figures that a node is held to.
var promised = faults.Bounds{
	Slowest:  100 * time.Millisecond,
	Factor:   2,
	Serving:  time.Second,
	Exact:    time.Second,
	Failover: 5 * time.Second,
	Lost:     100 * time.Millisecond,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	only := flag.String("only", "", "run only scenarios whose name matches this regular expression")
	rate := flag.Float64("rate", 5000, "checks a second")
	again := flag.Int("again", 2, "repeat a scenario that fails up to this many times while other processes take more than a tenth of the cores")
	verbose := flag.Bool("v", false, "show what the store logs")
	flag.Parse()
	wanted, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults: -only:", err)
		os.Exit(2)
	}
	c := faults.Config{Rate: *rate, Workers: 512, Budget: 50 * time.Millisecond, Settle: 2 * time.Second}
	if *verbose {
		c.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	ok, err := run(ctx, c, wanted, *again, os.Stdout, os.Stderr)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "faults: interrupted")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(2)
	case !ok:
		os.Exit(1)
	}
}

// run prints a table of all that was run, also when it ends early. It is true when every promise was kept.
func run(ctx context.Context, c faults.Config, wanted *regexp.Regexp, again int, stdout, stderr io.Writer) (ok bool, err error) {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "fault\tchecks\tdegraded\tnoticed\texact again\tlost\tslowest\tgoroutines\t200\t429\t503\tothers\t")
	var wrong []string
	ok = true
	for i, s := range faults.Scenarios {
		if !wanted.MatchString(s.Name) {
			continue
		}
		fmt.Fprintf(stderr, "%d/%d %s\n", i+1, len(faults.Scenarios), s.Name)
		r, others, failed := attempt(ctx, s, c, again, stderr)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", s.Name, failed))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		verdict := "PASS"
		for _, what := range promised.Judge(r) {
			verdict, ok = "FAIL", false
			wrong = append(wrong, s.Name+": "+what)
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%d → %d → %d\t%d\t%d\t%d\t%.0f%%\t%s\n", s.Name, r.Answers, r.Degraded,
			short(r.Noticed), short(r.Exact), short(r.Lost), short(r.Slowest), r.Before, r.Most, r.After,
			r.Statuses[200], r.Statuses[429], r.Statuses[503], 100*others, verdict)
	}
	fmt.Fprintf(stdout, "%.0f checks/s over HTTP, %s a check, %d cores\n\n", c.Rate, c.Budget, runtime.NumCPU())
	_ = table.Flush() // stdout is what it is
	fmt.Fprint(stdout, legend)
	for _, what := range wrong {
		fmt.Fprintln(stdout, "FAIL", what)
	}
	return ok && err == nil, err
}

const legend = `
noticed: first degraded answer since the fault. exact again: last degraded answer, and limits exact, since Redis is back or,
where Sentinels or a Cluster replace a primary, since the fault. lost: how long the load took to make the charges that were
answered as counted, and that no server has any more. slowest: since a check was due. goroutines: before, at
most, after. others: the part of the cores that other processes used.
`

// attempt runs a scenario again while it fails and other processes take the time that answers should have had.
func attempt(ctx context.Context, s faults.Scenario, c faults.Config, again int, stderr io.Writer) (r *faults.Result, others float64, err error) {
	for ; ; again-- {
		before := machine.Read(cputime.Children())
		if r, err = faults.Run(ctx, s, c); err != nil {
			return nil, 0, err
		}
		others = before.Others(machine.Read(cputime.Children()))
		if again == 0 || others <= machine.Disturbed || len(promised.Judge(r)) == 0 {
			return r, others, nil
		}
		fmt.Fprintf(stderr, "again: other processes used %.0f%% of the cores\n", 100*others)
	}
}

func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
