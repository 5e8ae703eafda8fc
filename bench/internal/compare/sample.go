package compare

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"time"

	"github.com/weirhq/weir/server/internal/load"
)

// Sample is one measurement of one contender.
type Sample struct {
	*load.Report
	// Allocs is the number of memory allocations in this process.
	Allocs float64
	// Others is the share of the machine's CPU time that other processes used during the measurement.
	Others float64
}

// maxOthers is the largest share of CPU time that other processes may use in a valid measurement.
const maxOthers = 0.1

// Calm reports whether other processes disturbed the measurement only a little.
func (s *Sample) Calm() bool { return s.Others <= maxOthers }

// Unexpected returns how many checks failed or were refused, although the limits admit all of them.
func (s *Sample) Unexpected() int64 { return s.Checks - s.Allowed + s.Errors }

// Figure returns one number of a sample; NaN if it is unknown.
type Figure func(*Sample) float64

func (s *Sample) perCheck(x float64) float64 {
	if s.Checks == 0 {
		return math.NaN()
	}
	return x / float64(s.Checks)
}

// PerSecond returns the number of checks per second.
func PerSecond(s *Sample) float64 { return 1e9 / Nanoseconds(s) }

// Nanoseconds returns the wall time divided by the checks of all goroutines.
func Nanoseconds(s *Sample) float64 { return s.perCheck(1e9 * s.Seconds) }

// CPU returns the CPU time that this process used, including garbage collection, in seconds per million checks.
func CPU(s *Sample) float64 {
	if s.CPUSeconds == 0 {
		return math.NaN()
	}
	return s.perCheck(1e6 * s.CPUSeconds)
}

// ServerCPU returns the CPU time that the server used, in seconds per million checks, which is the same as µs per check.
func ServerCPU(s *Sample) float64 {
	if s.StoreCPU == nil || s.StoreCPU.Unknown != "" {
		return math.NaN()
	}
	return s.perCheck(1e6 * s.StoreCPU.Seconds)
}

// Allocs returns the number of allocations per check.
func Allocs(s *Sample) float64 { return s.perCheck(s.Allocs) }

// P50 returns the median latency in milliseconds.
func P50(s *Sample) float64 { return 1e3 * s.Latency.P50.Seconds() }

// P99 returns the 99th percentile of latency in milliseconds.
func P99(s *Sample) float64 { return 1e3 * s.Latency.P99.Seconds() }

// Measure sends the load of a plan to a target.
func Measure(ctx context.Context, plan load.Plan, t load.Target) (Sample, error) {
	var readings []Reading
	var mallocs []uint64
	plan.Mark = func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		readings, mallocs = append(readings, ReadMachine()), append(mallocs, m.Mallocs)
	}
	report, err := load.Run(ctx, plan, t, nil)
	if err := errors.Join(err, ctx.Err()); err != nil {
		return Sample{}, err
	}
	ours := report.CPUSeconds
	if report.StoreCPU != nil {
		ours += report.StoreCPU.Seconds
	}
	return Sample{
		Report: report, Allocs: float64(mallocs[1] - mallocs[0]),
		Others: readings[0].Others(readings[1], time.Duration(ours*float64(time.Second))),
	}, nil
}

// Reading has the wall time, and the CPU time that the machine has used, at one moment.
type Reading struct {
	wall time.Time
	busy time.Duration // CPU time that all cores were busy, or that a hypervisor withheld; 0 if unknown
}

// ReadMachine reads the wall clock and the machine's CPU time.
func ReadMachine() Reading {
	r := Reading{wall: time.Now()}
	text, _ := os.ReadFile("/proc/stat") // only Linux has this file
	var user, nice, system, idle, iowait, irq, softirq, steal time.Duration
	_, err := fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal)
	if err == nil {
		r.busy = (user + nice + system + irq + softirq + steal) * 10 * time.Millisecond
	}
	return r
}

// Others returns the share of CPU time between two readings that went to other processes. ours is the CPU time of the
// measured processes. The share matters because a limiter that gets only one of two cores has half the throughput, and
// no contention.
func (r Reading) Others(now Reading, ours time.Duration) float64 {
	all := now.wall.Sub(r.wall) * time.Duration(runtime.NumCPU())
	return max(0, float64(now.busy-r.busy-ours)/float64(all))
}
