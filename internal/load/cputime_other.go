//go:build !unix

package load

import "time"

// cpuTime isn't known here.
func cpuTime() time.Duration { return 0 }
