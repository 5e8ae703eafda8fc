package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"time"

	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
)

// config is what the flags say.
type config struct {
	compare.Config
	goroutines      int
	clients, rivals int
	long            int
	timeout         time.Duration // of Weir's store; 0 means its default. No flag: tests run on busy machines
}

func main() {
	command.Main("redis", func(ctx context.Context, args []string, stdout, stderr io.Writer) (bool, error) {
		c, err := parse(args)
		if err != nil {
			return false, err
		}
		ok, err := run(ctx, c, stdout, stderr)
		return ok || !c.Strict, err
	})
}

func parse(args []string) (*config, error) {
	c := &config{Config: compare.Config{Rounds: 40, Time: 250 * time.Millisecond, Warmup: 50 * time.Millisecond, Keys: 100_000}}
	f := flag.NewFlagSet("redis", flag.ContinueOnError)
	c.Register(f, `"256 goroutines", "1 goroutine", "memory", "hostile client"`)
	f.IntVar(&c.goroutines, "goroutines", 256, "number of goroutines, in the workload that has many")
	f.IntVar(&c.clients, "clients", 1_000_000, "memory: number of Weir's clients, with ten counters each; 0 measures no memory")
	f.IntVar(&c.rivals, "rival-counters", 1_000_000, "memory: number of each rival's counters")
	f.IntVar(&c.long, "long", 100_000, "hostile client: admissions in its sliding logs; 0 leaves the workload out")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if c.goroutines < 2 || c.clients < 0 || c.clients == 1 || c.rivals < 2 || c.long < 0 || c.long > 0 && c.long < 100 {
		return nil, errors.New("-goroutines and -rival-counters must be at least 2, -clients 0 or at least 2, -long 0 or at least 100")
	}
	return c, c.Validate()
}

// run measures and prints. It returns true if every target is met.
func run(ctx context.Context, c *config, stdout, stderr io.Writer) (bool, error) {
	r, err := measureAll(ctx, c, stderr)
	if err != nil {
		return false, err
	}
	r.Targets = judge(c, r)
	r.print(stdout, c)
	if c.JSON != "" {
		settings := map[string]any{"goroutines": c.goroutines, "keys": c.Keys, "seconds_per_measurement": c.Time.Seconds()}
		if err := report.WriteJSON(c.JSON, settings, r); err != nil {
			return false, err
		}
	}
	return report.AllMet(r.Targets), nil
}
