//go:build unix

package main

import (
	"os"
	"syscall"
)

// stop is the signal of Ctrl-Z, and resume the one that continues the process.
var stop, resume os.Signal = syscall.SIGTSTP, syscall.SIGCONT

// stopJob stops all processes of the job, including this one.
func stopJob() { _ = syscall.Kill(0, syscall.SIGTSTP) }

// stopSelf stops this process. A few more instructions may run before it takes effect.
func stopSelf() error { return syscall.Kill(syscall.Getpid(), syscall.SIGSTOP) }
