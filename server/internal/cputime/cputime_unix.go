//go:build unix

// Package cputime reads the processor time of this process.
package cputime

import (
	"syscall"
	"time"
)

// Used is the processor time that this process has used on all cores; 0 if unknown.
func Used() time.Duration { return used(syscall.RUSAGE_SELF) }

// Children is the processor time of child processes that have ended.
func Children() time.Duration { return used(syscall.RUSAGE_CHILDREN) }

func used(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
