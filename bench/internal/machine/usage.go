// Package machine tells whether a measurement had the cores to itself.
package machine

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"time"
)

// Reading is a reading of the machine's clocks.
type Reading struct {
	wall  time.Time
	busy  time.Duration // of all cores
	known bool          // busy is
}

// Read reads the clocks.
func Read() Reading {
	busy, known := busyTime()
	return Reading{time.Now(), busy, known}
}

// Others is the share of the cores' time between two readings that went to processes outside of the measurement, whose own
// processes used ours. A limiter that gets only one of two cores has half the throughput, and no contention.
func (r Reading) Others(now Reading, ours time.Duration) float64 {
	if !r.known || !now.known {
		return 0
	}
	all := now.wall.Sub(r.wall) * time.Duration(runtime.NumCPU())
	return max(0, float64(now.busy-r.busy-ours)/float64(all))
}

// busyTime is the time of all cores that processes have used or a hypervisor has withheld, in steps of 10 ms. It returns
// false on systems without /proc/stat.
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
