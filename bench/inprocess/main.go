package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"runtime/pprof"
	"time"

	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
)

// config is what the flags say.
type config struct {
	compare.Config
	largeRounds, large int
	largeRivals, clone bool
	cpuProfile         string
}

func (c *config) wants(workload string) bool { return c.Workloads.MatchString(workload) }

func main() {
	command.Main("bench", func(ctx context.Context, args []string, stdout, stderr io.Writer) (bool, error) {
		c, err := parse(args)
		if err != nil {
			return false, err
		}
		ok, err := run(ctx, c, stdout, stderr)
		return ok || !c.Strict, err
	})
}

func parse(args []string) (*config, error) {
	c := &config{Config: compare.Config{Rounds: 5, Time: time.Second, Warmup: 200 * time.Millisecond, Keys: 1_000_000}}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	c.Register(f, `"hot key", "refused", "1 M uniform", "Zipf", "memory", "http"`)
	f.IntVar(&c.largeRounds, "large-rounds", 5, "how often to measure with many keys, where stores take long to fill")
	f.IntVar(&c.large, "large", 10_000_000, "number of keys where there are many; 0 leaves those workloads out")
	f.BoolVar(&c.largeRivals, "large-rivals", false, "also measure all rivals with many keys; some need gigabytes")
	f.BoolVar(&c.clone, "clone", false, "fill stores with copies of the keys, as from requests")
	f.StringVar(&c.cpuProfile, "cpuprofile", "", "write a CPU profile, whose labels are workload and contender, to this file")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if c.largeRounds < 1 || c.large < 0 {
		return nil, errors.New("-large-rounds must be at least 1, and -large at least 0")
	}
	return c, c.Validate()
}

// run measures and prints. It returns true if every target is met.
func run(ctx context.Context, c *config, stdout, stderr io.Writer) (bool, error) {
	if c.cpuProfile != "" {
		f, err := os.Create(c.cpuProfile)
		if err != nil {
			return false, err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return false, err
		}
		defer pprof.StopCPUProfile()
	}
	r, err := measureAll(ctx, c, stderr)
	if err != nil {
		return false, err
	}
	r.Targets = judge(c, r)
	r.print(stdout, c)
	if c.JSON != "" {
		if err := report.WriteJSON(c.JSON, c.settings(), r); err != nil {
			return false, err
		}
	}
	return report.AllMet(r.Targets), nil
}
