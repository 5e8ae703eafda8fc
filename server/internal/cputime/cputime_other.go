//go:build !unix

package cputime

import "time"

// Used isn't known here.
func Used() time.Duration { return 0 }

// Children isn't known, either.
func Children() time.Duration { return 0 }
