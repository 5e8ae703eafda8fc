package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"runtime/pprof"
	"time"

	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// config is what the flags say.
type config struct {
	rounds, largeRounds   int
	again                 int
	time, warmup          time.Duration
	keys, large           int
	largeRivals, clone    bool
	contenders, workloads *regexp.Regexp
	json, cpuProfile      string
	strict                bool
}

func (c *config) wants(workload string) bool { return c.workloads.MatchString(workload) }

func main() {
	c, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	ok := false
	if err == nil {
		ok, err = run(c, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if !ok && c.strict {
		os.Exit(1)
	}
}

func parse(args []string) (*config, error) {
	c := &config{}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.IntVar(&c.rounds, "rounds", 5, "measure every contender this many times; three times as often over HTTP, and ten times as often, for a tenth of the time, with a hot key")
	f.IntVar(&c.largeRounds, "large-rounds", 5, "the same for the workload of many keys, whose stores take long to fill")
	f.DurationVar(&c.time, "time", time.Second, "length of a measurement")
	f.DurationVar(&c.warmup, "warmup", 200*time.Millisecond, "time before each measurement")
	f.IntVar(&c.again, "again", 2, "repeat a measurement up to this many times while other processes take more than a tenth of the cores")
	f.IntVar(&c.keys, "keys", 1_000_000, "keys")
	f.IntVar(&c.large, "large", 10_000_000, "keys where there are many; 0 leaves those workloads out")
	f.BoolVar(&c.largeRivals, "large-rivals", false, "measure all rivals with many keys, too; some need gigabytes")
	f.BoolVar(&c.clone, "clone", false, "fill stores with copies of the keys, as from requests")
	contenders := f.String("contenders", "", "measure only those whose name matches this regular expression")
	workloads := f.String("workloads", "", `run only workloads that match: "hot key", "refused", "1 M uniform", "Zipf", "memory", "http"`)
	f.StringVar(&c.json, "json", "", "write the results to this file as well")
	f.StringVar(&c.cpuProfile, "cpuprofile", "", "write a CPU profile; its labels are workload, contender and phase (warmup, measure)")
	f.BoolVar(&c.strict, "strict", false, "exit with 1 unless every target is met")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if c.rounds < 1 || c.largeRounds < 1 || c.keys < 2 || c.large < 0 {
		return nil, errors.New("-rounds and -large-rounds must be at least 1, -keys at least 2, -large at least 0")
	}
	var err, err2 error
	c.contenders, err = regexp.Compile(*contenders)
	c.workloads, err2 = regexp.Compile(*workloads)
	return c, errors.Join(err, err2)
}

// run measures and reports. It is true when every target was met.
func run(c *config, stdout, stderr io.Writer) (bool, error) {
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
	r, err := measureAll(c, stderr)
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

func measureAll(c *config, stderr io.Writer) (*results, error) {
	stages, weights := plan(c), planWeights(c)
	steps := len(weights)
	for _, s := range stages {
		steps += s.rounds * len(s.entries)
	}
	p := report.NewProgress(stderr, steps)
	k := workload.MakeKeys(max(c.keys, c.large))
	r := &results{}
	// Memory goes first, while the heap is still small.
	for _, m := range weights {
		p.Step("memory at %s keys: %s", report.Amount(m.keys), m.name)
		f, err := weigh(m.contender, k, m.keys)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		r.footprints = append(r.footprints, f)
		debug.FreeOSMemory()
	}
	for _, s := range stages {
		tables, err := s.run(c, k, p)
		if err != nil {
			return nil, err
		}
		r.tables = append(r.tables, tables...)
	}
	p.Done()
	return r, nil
}
