//go:build unix

// Package cputime tells what measuring has cost.
package cputime

import (
	"syscall"
	"time"
)

// Used is what this process has used of all cores; 0 where the system doesn't tell.
func Used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
