package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/weirhq/weir/server/bench/internal/report"
)

// config is what the flags say.
type config struct {
	rounds, again         int
	time, warmup          time.Duration
	keys, goroutines      int
	clients, rivals       int
	long                  int
	contenders, workloads *regexp.Regexp
	json                  string
	strict                bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	ok := false
	if err == nil {
		ok, err = run(ctx, c, os.Stdout, os.Stderr)
	}
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "redis: interrupted")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "redis:", err)
		os.Exit(2)
	case !ok && c.strict:
		os.Exit(1)
	}
}

func parse(args []string) (*config, error) {
	c := &config{}
	f := flag.NewFlagSet("redis", flag.ContinueOnError)
	f.IntVar(&c.rounds, "rounds", 40, "measure every contender this many times")
	f.DurationVar(&c.time, "time", 250*time.Millisecond, "length of a measurement")
	f.DurationVar(&c.warmup, "warmup", 50*time.Millisecond, "time before each measurement")
	f.IntVar(&c.again, "again", 2, "repeat a measurement up to this many times while other processes take more than a tenth of the cores")
	f.IntVar(&c.keys, "keys", 100_000, "keys")
	f.IntVar(&c.goroutines, "goroutines", 256, "goroutines, in the workload that has many")
	f.IntVar(&c.clients, "clients", 1_000_000, "memory: clients of Weir, with ten counters each; 0 measures no memory")
	f.IntVar(&c.rivals, "rival-counters", 1_000_000, "memory: counters of each rival")
	f.IntVar(&c.long, "long", 100_000, "hostile client: admissions in its sliding logs; 0 leaves it out")
	contenders := f.String("contenders", "", "measure only those whose name matches this regular expression")
	workloads := f.String("workloads", "", `run only workloads that match: "256 goroutines", "1 goroutine", "memory", "hostile client"`)
	f.StringVar(&c.json, "json", "", "write the results to this file as well")
	f.BoolVar(&c.strict, "strict", false, "exit with 1 unless every target is met")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if c.rounds < 1 || c.keys < 2 || c.goroutines < 2 || c.clients < 0 || c.clients == 1 || c.rivals < 2 || c.long < 0 || c.long > 0 && c.long < 100 {
		return nil, errors.New("-rounds must be at least 1; -keys, -goroutines and -rival-counters at least 2, -clients, too, or 0; -long at least 100, or 0")
	}
	var err, err2 error
	c.contenders, err = regexp.Compile(*contenders)
	c.workloads, err2 = regexp.Compile(*workloads)
	return c, errors.Join(err, err2)
}

// run measures and reports. It is true when every target was met.
func run(ctx context.Context, c *config, stdout, stderr io.Writer) (bool, error) {
	r, err := measureAll(ctx, c, stderr)
	if err != nil {
		return false, err
	}
	r.targets = judge(c, r)
	r.print(stdout, c)
	if c.json != "" {
		if err := r.writeJSON(c.json, c); err != nil {
			return false, err
		}
	}
	return report.AllMet(r.targets), nil
}
