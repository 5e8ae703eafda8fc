package compare

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/weirhq/weir/server/internal/load"
)

// Sample is one measurement of one contender.
type Sample struct {
	*load.Report
	// Allocs is how often this process allocated memory.
	Allocs float64
	// Others is the share of the cores' time that went to processes outside of the measurement.
	Others float64
}

// maxOthers is the largest share of the cores that other processes may take.
const maxOthers = 0.1

// Calm reports whether the measurement had the cores to itself.
func (s *Sample) Calm() bool { return s.Others <= maxOthers }

// Unexpected is how many checks failed or were refused. Limits admit all of them.
func (s *Sample) Unexpected() int64 { return s.Checks - s.Allowed + s.Errors }

// Figure is one of the numbers of a sample; NaN if it is unknown.
type Figure func(*Sample) float64

func (s *Sample) perCheck(x float64) float64 {
	if s.Checks == 0 {
		return math.NaN()
	}
	return x / float64(s.Checks)
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

// ServerCPU is the processor time that the server used, in seconds per million checks: as many as µs per check.
func ServerCPU(s *Sample) float64 {
	if s.StoreCPU == nil || s.StoreCPU.Unknown != "" {
		return math.NaN()
	}
	return s.perCheck(1e6 * s.StoreCPU.Seconds)
}

// Allocs is the number of allocations per check.
func Allocs(s *Sample) float64 { return s.perCheck(s.Allocs) }

// P50 is the median latency in milliseconds.
func P50(s *Sample) float64 { return 1e3 * s.Latency.P50.Seconds() }

// P99 is the 99th percentile of latency in milliseconds.
func P99(s *Sample) float64 { return 1e3 * s.Latency.P99.Seconds() }

// Measure makes the load of a plan on a target.
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

// Reading is a reading of the machine's clocks.
type Reading struct {
	wall  time.Time
	busy  time.Duration // of all cores
	known bool          // busy is
}

// ReadMachine reads the clocks.
func ReadMachine() Reading {
	busy, known := busyTime()
	return Reading{time.Now(), busy, known}
}

// Others is the share of the cores' time between two readings that went to other processes than those measured, which used
// ours. A limiter that gets only one of two cores has half the throughput, and no contention.
func (r Reading) Others(now Reading, ours time.Duration) float64 {
	if !r.known || !now.known {
		return 0
	}
	all := now.wall.Sub(r.wall) * time.Duration(runtime.NumCPU())
	return max(0, float64(now.busy-r.busy-ours)/float64(all))
}

// busyTime is the time that all cores were busy or withheld by a hypervisor; false on systems without /proc/stat.
func busyTime() (time.Duration, bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	// cpu user nice system idle iowait irq softirq steal …
	fields := bytes.Fields(line)
	if len(fields) < 9 {
		return 0, false
	}
	ticks := 0
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		n, err := strconv.Atoi(string(fields[i]))
		if err != nil {
			return 0, false
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, true
}
