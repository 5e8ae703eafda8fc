// Package machine tells whether a measurement had the cores to itself.
package machine

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/weirhq/weir/server/internal/cputime"
)

// machineTime is the time of all cores that processes have used or a hypervisor has withheld, in steps of 10 ms. It
// returns false on systems without /proc/stat.
func machineTime() (time.Duration, bool) {
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

// Usage is a reading of the clocks of this process and of the machine.
type Usage struct {
	Wall    time.Time
	Own     time.Duration // of this process
	Helpers time.Duration // of the processes that belong to the measurement
	machine time.Duration
	known   bool // machine is
}

// Read reads the clocks. Helpers is the processor time that other processes of the measurement have used so far.
func Read(helpers time.Duration) Usage {
	machine, known := machineTime()
	return Usage{time.Now(), cputime.Used(), helpers, machine, known}
}

// Others is the share of the cores' time between two readings that went to processes outside of the measurement. A limiter
// that gets only one of two cores has half the throughput, and no contention.
func (u Usage) Others(now Usage) float64 {
	if !u.known || !now.known || u.Own == 0 {
		return 0
	}
	all := now.Wall.Sub(u.Wall) * time.Duration(runtime.NumCPU())
	return max(0, float64(now.machine-u.machine-(now.Own-u.Own)-(now.Helpers-u.Helpers))/float64(all))
}

// Disturbed is the largest share of the cores that other processes may take.
const Disturbed = 0.1

// Calmest measures, up to again times more while other processes disturb, and returns the measurement with the smallest
// share of others.
func Calmest[T any](again int, others func(T) float64, measure func() (T, error)) (T, error) {
	best, err := measure()
	for ; err == nil && again > 0 && others(best) > Disturbed; again-- {
		var next T
		if next, err = measure(); err == nil && others(next) < others(best) {
			best = next
		}
	}
	return best, err
}
