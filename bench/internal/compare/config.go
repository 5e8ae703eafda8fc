// Package compare measures ways to limit beside each other: contenders take turns, and the median of their ratios counts.
package compare

import (
	"errors"
	"flag"
	"regexp"
	"time"
)

// Config holds the flags that every comparison has.
type Config struct {
	Rounds       int
	Time, Warmup time.Duration
	Keys         int
	Contenders   regexp.Regexp
	Workloads    regexp.Regexp
	Strict       bool
}

// Register adds the flags. The config's values are their defaults.
func (c *Config) Register(f *flag.FlagSet, workloads string) {
	f.IntVar(&c.Rounds, "rounds", c.Rounds, "how often to measure every contender")
	f.DurationVar(&c.Time, "time", c.Time, "length of a measurement")
	f.DurationVar(&c.Warmup, "warmup", c.Warmup, "warm-up before each measurement")
	f.IntVar(&c.Keys, "keys", c.Keys, "number of keys")
	f.TextVar(&c.Contenders, "contenders", regexp.MustCompile(""), "measure only contenders whose name matches this regular expression")
	f.TextVar(&c.Workloads, "workloads", regexp.MustCompile(""), "run only workloads that match this regular expression: "+workloads)
	f.BoolVar(&c.Strict, "strict", false, "exit with 1 unless every target is met")
}

// Validate reports values that make no sense.
func (c *Config) Validate() error {
	if c.Rounds < 1 || c.Keys < 2 {
		return errors.New("-rounds must be at least 1, and -keys at least 2")
	}
	return nil
}
