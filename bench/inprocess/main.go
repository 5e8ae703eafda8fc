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
	"flag"
	"time"

	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
)

func main() {
	c := &compare.Config{Rounds: 5, Time: time.Second, Warmup: 200 * time.Millisecond, Keys: 1_000_000}
	c.Register(flag.CommandLine, `"hot key", "1 M uniform", "1 M Zipf", "over HTTP", "1 M memory"`)
	command.Main(func(r *command.Run) bool { return c.Passes(run(r, c).targets) })
}

// run measures the contenders, and prints the results.
func run(r *command.Run, c *compare.Config) *results {
	c.Validate(r)
	out := measureAll(r, c)
	out.targets = judge(c, out)
	out.print(r.Out, c)
	return out
}
