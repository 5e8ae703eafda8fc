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

// machineTime is what all processes have used of all cores, and what a
// hypervisor kept from them, in steps of 10 ms. It is false where the system doesn't tell.
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

// Usage is a moment on the clocks of this process and of the machine.
type Usage struct {
	Wall    time.Time
	Own     time.Duration // this process
	Helpers time.Duration
	machine time.Duration
	known   bool // the machine's time is
}

// Read reads the clocks. Helpers is what processes that belong to the measurement have used so far.
func Read(helpers time.Duration) Usage {
	machine, known := machineTime()
	return Usage{time.Now(), cputime.Used(), helpers, machine, known}
}

// Others is the part of the cores' time since then that went to anyone else. A limiter
// that only got one of two cores meets no contention, and half the throughput.
func (u Usage) Others(now Usage) float64 {
	if !u.known || !now.known || u.Own == 0 {
		return 0
	}
	all := now.Wall.Sub(u.Wall) * time.Duration(runtime.NumCPU())
	return max(0, float64(now.machine-u.machine-(now.Own-u.Own)-(now.Helpers-u.Helpers))/float64(all))
}

// Disturbed is the part that is too much.
const Disturbed = 0.1
