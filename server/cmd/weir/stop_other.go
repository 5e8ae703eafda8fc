//go:build !unix

package main

import "os"

// stop and resume are nil, because this system has no job control.
var stop, resume os.Signal

func stopJob() {}

func stopSelf() error { return nil }
