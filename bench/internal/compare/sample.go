package compare

import (
	"context"
	"errors"
	"math"
	"runtime"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/machine"
	"github.com/weirhq/weir/server/internal/load"
)

// Sample is one measurement of one contender.
type Sample struct {
	*load.Report
	// Unexpected is how many checks failed, or were refused where they should be allowed or allowed where they should be
	// refused.
	Unexpected int64
	// RedisCPU is the seconds of processor time that the Redis server used; NaN if there is none, or if others used it.
	RedisCPU float64
	// Allocs is how often this process allocated memory; NaN if unknown.
	Allocs float64
	// Others is the share of the cores' time that went to processes outside of the measurement.
	Others float64
}

// Calm reports whether the measurement had the cores to itself.
func (s *Sample) Calm() bool { return s.Others <= machine.Disturbed }

// Figure is one of the numbers of a sample; NaN if it is unknown.
type Figure func(*Sample) float64

func (s *Sample) perCheck(x float64) float64 {
	if s.Checks == 0 {
		return math.NaN()
	}
	return x / float64(s.Checks)
}

// The figures of a sample.
var figures = map[string]Figure{
	"checks_per_second":        PerSecond,
	"ns_per_check":             Nanoseconds,
	"cpu_s_per_million":        CPU,
	"redis_cpu_s_per_million":  RedisCPU,
	"allocations_per_check":    Allocs,
	"p50_ms":                   P50,
	"p99_ms":                   P99,
	"share_of_other_processes": func(s *Sample) float64 { return s.Others },
	"unexpected":               func(s *Sample) float64 { return float64(s.Unexpected) },
}

// PerSecond is the number of checks a second.
func PerSecond(s *Sample) float64 { return 1e9 / Nanoseconds(s) }

// Nanoseconds is the wall time per check, all goroutines together.
func Nanoseconds(s *Sample) float64 { return s.perCheck(1e9 * s.Seconds) }

// CPU is the processor time that this process used, garbage collection included, in seconds per million checks.
func CPU(s *Sample) float64 {
	if s.CPUSeconds == 0 {
		return math.NaN()
	}
	return s.perCheck(1e6 * s.CPUSeconds)
}

// RedisCPU is the processor time that the Redis server used, in seconds per million checks.
func RedisCPU(s *Sample) float64 { return s.perCheck(1e6 * s.RedisCPU) }

// Allocs is the number of allocations per check.
func Allocs(s *Sample) float64 { return s.perCheck(s.Allocs) }

// P50 is the median latency in milliseconds.
func P50(s *Sample) float64 { return 1e3 * s.Latency.P50.Seconds() }

// P99 is the 99th percentile of latency in milliseconds.
func P99(s *Sample) float64 { return 1e3 * s.Latency.P99.Seconds() }

// Setup says how a contender is measured.
type Setup struct {
	Plan    load.Plan
	Refuses bool              // every check is expected to be refused, instead of allowed
	Redis   *redistest.Server // that the contender uses; nil means none
	Again   int               // repeat up to this many times while other processes disturb
}

// Measure measures a target. If other processes disturbed every attempt, it returns the calmest.
func (s *Setup) Measure(ctx context.Context, t load.Target) (Sample, error) {
	others := func(s Sample) float64 { return s.Others }
	return machine.Calmest(s.Again, others, func() (Sample, error) { return s.once(ctx, t) })
}

func (s *Setup) once(ctx context.Context, t load.Target) (Sample, error) {
	var clock Clock
	plan := s.Plan
	plan.Mark = func() { clock.Mark(ctx, s.Redis) }
	report, err := load.Run(ctx, plan, t, nil)
	if err := errors.Join(err, clock.err, ctx.Err()); err != nil {
		return Sample{}, err
	}
	out := Sample{Report: report, Unexpected: report.Checks - report.Allowed + report.Errors, RedisCPU: math.NaN()}
	if s.Refuses {
		out.Unexpected = report.Checks - report.Refused + report.Errors
	}
	if s.Redis != nil {
		out.RedisCPU = (clock.end.usage.Helpers - clock.start.usage.Helpers).Seconds()
	}
	out.Allocs, out.Others = float64(clock.end.mallocs-clock.start.mallocs), clock.Others()
	return out, nil
}

// Clock reads what this process, a Redis server and the machine have used, at the beginning of a measurement and at its end.
type Clock struct {
	start, end reading
	err        error
}

type reading struct {
	usage   machine.Usage
	mallocs uint64
}

// Mark takes a reading: the first is the beginning, and the last the end.
func (c *Clock) Mark(ctx context.Context, redis *redistest.Server) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var used time.Duration
	if redis != nil {
		var err error
		used, err = redis.CPU(ctx)
		c.err = errors.Join(c.err, err)
	}
	r := reading{machine.Read(used), m.Mallocs}
	if c.start.usage.Wall.IsZero() {
		c.start = r
	}
	c.end = r
}

// Others is the share of the cores' time between both readings that went to processes outside of the measurement.
func (c *Clock) Others() float64 { return c.start.usage.Others(c.end.usage) }

// Err is why a reading failed.
func (c *Clock) Err() error { return c.err }
