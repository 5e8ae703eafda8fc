//go:build !unix

package main

import "os"

// Without job control, nothing stops a process or resumes it.
var stop, resume os.Signal

func stopJob() {}

func stopSelf() error { return nil }
