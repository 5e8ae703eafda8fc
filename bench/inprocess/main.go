// Command inprocess compares Weir, in one process, with other limiters for Go. It measures the function that a program
// calls to limit a key, and checks by rules. It compares the results with targets.
//
//	go run ./bench/inprocess            # everything, about two minutes
//	go run ./bench/inprocess -strict    # exit with 1 if a target is missed
//	go run ./bench/inprocess -workloads uniform -contenders 'Weir|go-limiter' -rounds 3
//	go run ./bench/inprocess -workloads memory -contenders Weir -keys 10000000
//
// Times on small shared machines are noise, but ratios within one run aren't. So contenders take turns: each round
// measures every contender once, on a new store, in an order that rotates. Ratios are computed within each round, and
// the median over all rounds is printed. All contenders get the same keys and the same limit, which admits everything. A
// measurement during which other processes used more than a tenth of the CPU time is left out, since a limiter that gets
// only one of two cores meets no contention.
//
// Each contender gets:
//
//   - GOMAXPROCS goroutines. Nanoseconds per check are the wall time divided by the checks of all goroutines, so on two
//     cores, each check takes a core for twice that time.
//   - If it has options for that: memory for its keys in advance, no sweeping during the run, and no response headers to
//     write. Rivals that keep keys keep references into the array of keys, and not copies, which saves them cache misses
//     when they compare keys.
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
