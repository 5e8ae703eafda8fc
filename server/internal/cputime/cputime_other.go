//go:build !unix

package cputime

import "time"

// Used returns 0, because the CPU time is unknown on this system.
func Used() time.Duration { return 0 }

// Children returns 0, because the CPU time is unknown on this system.
func Children() time.Duration { return 0 }
