//go:build unix

// Package cputime tells what measuring has cost.
package cputime

import (
	"syscall"
	"time"
)

// Used is what this process has used of all cores; 0 where the system doesn't tell.
func Used() time.Duration { return used(syscall.RUSAGE_SELF) }

// Children is what processes have used that this one started, and that have ended.
func Children() time.Duration { return used(syscall.RUSAGE_CHILDREN) }

func used(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
