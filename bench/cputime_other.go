//go:build !unix

package main

import "time"

// cpuTime isn't known here.
func cpuTime() time.Duration { return 0 }
