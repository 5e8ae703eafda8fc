// Command redis compares Weir with other ways to limit through Redis, in one run against redis-servers of its own, and
// compares the results with targets.
//
//	go run ./bench/redis              # everything, about five minutes
//	go run ./bench/redis -strict      # exit with 1 if a target is missed
//	go run ./bench/redis -workloads goroutine -contenders 'Weir|redis_rate' -rounds 10
//	go run ./bench/redis -keys 1000000 -clients 0
//
// With many goroutines, every contender has its own server, which has all keys and the same settings as the others.
// Only the contender that is being measured sends commands. Each round measures every contender once, for a short time,
// in random order. With one goroutine, all contenders share one server and take turns at every check. A ratio is
// computed within its round, and the median and the quartiles over the rounds are printed. All contenders see the same
// keys, under a limit that admits everything and refills so slowly that no counter may be forgotten. A measurement with
// a refused or failed check isn't used, nor is one during which other processes took more than a tenth of the cores.
//
// Goroutines send their next check when the last one is answered, so a slow contender gets fewer checks. Latency is the time
// of one check. Client and server share the cores, so CPU seconds per million checks tell more than checks per second.
//
// Clients have their default settings, except that rueidis neither caches nor pings.
//
// Memory is the growth of Redis' used_memory divided by the number of counters.
package main

import (
	"flag"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
)

// config has the values of the flags.
type config struct {
	compare.Config
	goroutines      int
	clients, rivals int
	timeout         time.Duration // timeout of Weir's store; 0 means its default. There is no flag: tests set it, because they run on busy machines
}

func main() {
	c := &config{Config: compare.Config{Rounds: 40, Time: 250 * time.Millisecond, Warmup: 50 * time.Millisecond, Keys: 100_000}}
	c.Register(flag.CommandLine, `"256 goroutines", "1 goroutine", "memory"`)
	flag.IntVar(&c.goroutines, "goroutines", 256, "number of goroutines, in the workload that has many")
	flag.IntVar(&c.clients, "clients", 1_000_000, "memory: number of Weir's clients, with ten counters each; 0 measures no memory")
	flag.IntVar(&c.rivals, "rival-counters", 1_000_000, "memory: number of each rival's counters")
	command.Main(func(r *command.Run) bool { return c.Passes(run(r, c).targets) })
}

// results holds everything that was measured.
type results struct {
	tables     compare.Tables
	footprints []footprint
	targets    []report.Target
}

// many and alone are the names of the workloads.
func many(c *config) string { return fmt.Sprintf("%d goroutines", c.goroutines) }

const (
	alone        = "1 goroutine"
	memoryWeight = "memory"
)

// run measures the contenders, and prints the results.
func run(r *command.Run, c *config) *results {
	if c.Validate(r); c.goroutines < 2 || c.clients < 0 || c.clients == 1 || c.rivals < 2 {
		r.Fatal("-goroutines and -rival-counters must be at least 2, -clients 0 or at least 2")
	}
	var picked []contender
	for _, o := range contenders {
		if c.Contenders.MatchString(o.name) {
			picked = append(picked, o)
		}
	}
	var workloads []string
	for _, name := range []string{many(c), alone} {
		if c.Workloads.MatchString(name) && len(picked) > 0 {
			workloads = append(workloads, name)
		}
	}
	keys := compare.MakeKeys(max(c.Keys, c.clients, c.rivals))
	out := &results{}
	for _, name := range workloads {
		r.Part(name, func(r *command.Run) { out.tables = append(out.tables, race(r, c, name, picked, keys)) })
	}
	out.footprints = footprints(c)
	for i := range out.footprints {
		f := &out.footprints[i]
		r.Logf("memory of %s counters: %s", report.Amount(f.checks*f.each), f.name)
		r.Part(f.name, func(r *command.Run) { f.measure(r, c, keys) })
	}
	out.targets = judge(c, out)
	out.print(r.Out, c)
	return out
}

func (r *results) print(w io.Writer, c *config) {
	fmt.Fprintf(w, "%s %s/%s, with Redis on %d cores. %s per measurement after %s of warm-up, %s keys uniform.\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), c.Time, c.Warmup, report.Amount(c.Keys))
	fmt.Fprintln(w, "Medians over the rounds; in brackets the middle half of them. CPU: seconds per million checks. Limits admit every check.")
	for _, t := range r.tables {
		base := t.Row(redisRate)
		t.Print(w, "",
			compare.Median("checks/s", compare.PerSecond, 0), compare.Range("", compare.PerSecond, 0), compare.Ratio("× redis_rate", base, compare.PerSecond),
			compare.Median("p50 ms", compare.P50, 3), compare.Median("p99 ms", compare.P99, 3), compare.Range("", compare.P99, 3),
			compare.Median("Redis CPU", compare.ServerCPU, 2), compare.Range("", compare.ServerCPU, 2), compare.Ratio("× redis_rate", base, compare.ServerCPU),
			compare.Median("client CPU", compare.CPU, 2))
	}
	printFootprints(w, r.footprints)
	report.PrintTargets(w, r.targets)
}

// judge compares the results with the targets. The speed targets apply twice: to the store alone, which does what other
// limiters do, and to a whole check with rules, which does more.
func judge(c *config, r *results) []report.Target {
	busy, quiet := r.tables.Of(many(c)), r.tables.Of(alone)
	var ts []report.Target
	add := func(name string, bound float64, atLeast bool, s report.Spread) {
		ts = append(ts, report.Target{Name: name, Bound: bound, AtLeast: atLeast, Got: s.Median, Note: fmt.Sprintf("%.2f–%.2f", s.Low, s.High)})
	}
	for _, name := range []string{storeName, checkName} {
		weirs, base := busy.Row(name), busy.Row(redisRate)
		at := many(c) + ": " + name + " / redis_rate, "
		add(at+"checks/s", 4, true, weirs.Ratio(base, compare.PerSecond))
		add(at+"Redis CPU", 0.35, false, weirs.Ratio(base, compare.ServerCPU))
		add(at+"p99", 1, false, weirs.Ratio(base, compare.P99))
		add(alone+": "+name+" / redis_rate, p50", 1.1, false, quiet.Row(name).Ratio(quiet.Row(redisRate), compare.P50))
	}
	for _, f := range r.footprints {
		if f.name == tenName {
			ts = append(ts, report.Target{Name: "bytes per counter, " + report.Amount(c.clients) + " clients with ten", Bound: 40, Got: f.bytes})
		}
	}
	return ts
}
