// Command inprocess compares Weir in one process with other limiters for Go: what a program calls to limit a key, and what
// a check by rules costs. It compares the results with targets.
//
//	go run ./bench/inprocess            # everything, about two minutes
//	go run ./bench/inprocess -strict    # exit with 1 if a target is missed
//	go run ./bench/inprocess -workloads uniform -contenders 'Weir|go-limiter' -rounds 3
//	go run ./bench/inprocess -workloads memory -contenders Weir -keys 10000000
//
// Times on small shared machines are noise, but ratios within one run are not. So contenders take turns: each round measures
// every contender once, on a fresh store, in an order that rotates. A ratio is computed within its round, and the median
// over the rounds is printed. All contenders see the same keys under the same limit, which admits everything. A measurement
// during which other processes took more than a tenth of the cores is left out, since a limiter that gets one of two cores
// meets no contention.
//
// Each contender gets:
//
//   - GOMAXPROCS goroutines. Nanoseconds per check are wall time divided by the checks of all goroutines, so on two cores a
//     check takes a core twice as long.
//   - Room for its keys beforehand, if it can be asked for; no sweeping during the run; no response headers to write, if
//     they can be turned off. Rivals that keep the key keep a reference into the array of keys, which spares them the cache
//     miss of comparing with a copy.
//   - A store that holds every key before the measurement starts.
package main

import (
	"context"
	"flag"
	"io"
	"time"

	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
)

func main() {
	command.Main("bench", func(ctx context.Context, args []string, stdout, stderr io.Writer) (bool, error) {
		c, err := parse(args)
		if err != nil {
			return false, err
		}
		r, err := run(ctx, c, stdout, stderr)
		return err == nil && (!c.Strict || report.AllMet(r.targets)), err
	})
}

func parse(args []string) (*compare.Config, error) {
	c := &compare.Config{Rounds: 5, Time: time.Second, Warmup: 200 * time.Millisecond, Keys: 1_000_000}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	c.Register(f, `"hot key", "1 M uniform", "1 M Zipf", "over HTTP", "1 M memory"`)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	return c, c.Validate()
}

// run measures the contenders, and prints the results.
func run(ctx context.Context, c *compare.Config, stdout, stderr io.Writer) (*results, error) {
	r, err := measureAll(ctx, c, stderr)
	if err != nil {
		return nil, err
	}
	r.targets = judge(c, r)
	r.print(stdout, c)
	return r, nil
}
