//go:build unix

package main

import (
	"os"
	"syscall"
)

// stop is what Ctrl-Z asks for, and resume what ends it.
var stop, resume os.Signal = syscall.SIGTSTP, syscall.SIGCONT

// stopJob asks all processes of the job to stop, this one among them.
func stopJob() { _ = syscall.Kill(0, syscall.SIGTSTP) }

// stopSelf stops this process. Some instructions may run before it does.
func stopSelf() error { return syscall.Kill(syscall.Getpid(), syscall.SIGSTOP) }
