// Package compare compares limiters. The contenders take turns, and the results are medians of the ratios in each round.
package compare

import (
	"flag"
	"regexp"
	"time"

	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/report"
)

// Config has the flags that all comparisons share.
type Config struct {
	Rounds       int
	Time, Warmup time.Duration
	Keys         int
	Contenders   regexp.Regexp
	Workloads    regexp.Regexp
	Strict       bool
}

// Register adds the flags. The values in the config are the defaults.
func (c *Config) Register(f *flag.FlagSet, workloads string) {
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "how often to measure every contender")
	f.DurationVar(&c.Time, "time", c.Time, "length of a measurement")
	f.DurationVar(&c.Warmup, "warmup", c.Warmup, "warm-up before each measurement")
	f.IntVar(&c.Keys, "keys", c.Keys, "number of keys")
	f.TextVar(&c.Contenders, "contenders", regexp.MustCompile(""), "measure only contenders whose name matches this regular expression")
	f.TextVar(&c.Workloads, "workloads", regexp.MustCompile(""), "run only workloads that match this regular expression: "+workloads)
	f.BoolVar(&c.Strict, "strict", false, "exit with 1 unless every target is met")
}

// Validate ends the measurement if a value is invalid.
func (c *Config) Validate(r *command.Run) {
	if c.Rounds < 1 || c.Keys < 2 {
		r.Fatal("-rounds must be at least 1, and -keys at least 2")
	}
}

// Passes reports whether all targets are met. Without the flag -strict, it always returns true.
func (c *Config) Passes(targets []report.Target) bool { return !c.Strict || report.AllMet(targets) }
