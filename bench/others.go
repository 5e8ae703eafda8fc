package main

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/weirhq/weir/internal/cputime"
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

// usage is a moment on the clocks of this process and of the machine.
type usage struct {
	wall         time.Time
	own, machine time.Duration
	known        bool // the machine's time is
}

func readUsage() usage {
	machine, known := machineTime()
	return usage{time.Now(), cputime.Used(), machine, known}
}

// others is the part of the cores' time since then that went to anyone else. A limiter
// that only got one of two cores meets no contention, and half the throughput.
func (u usage) others(now usage) float64 {
	if !u.known || !now.known || u.own == 0 {
		return 0
	}
	all := now.wall.Sub(u.wall) * time.Duration(runtime.NumCPU())
	return max(0, float64(now.machine-u.machine-(now.own-u.own))/float64(all))
}

// disturbed is the part that is too much.
const disturbed = 0.1
