//go:build unix

// Package cputime reads the CPU time of this process and its children.
package cputime

import (
	"syscall"
	"time"
)

// Used returns the CPU time that this process has used on all cores, or 0 if it is unknown.
func Used() time.Duration { return used(syscall.RUSAGE_SELF) }

// Children returns the CPU time of child processes that have ended.
func Children() time.Duration { return used(syscall.RUSAGE_CHILDREN) }

func used(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
