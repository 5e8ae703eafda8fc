// Package loopback finds addresses for tests that close a port and later listen on it again, or need it to stay closed.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"runtime"
)

// Host returns an IP address of this machine on which no other process listens, so that a port that was closed there
// stays free. On 127.0.0.1, the kernel would give the port to the next process that listens on any free port.
func Host() string {
	if runtime.GOOS != "linux" { // other systems have only 127.0.0.1
		return "127.0.0.1"
	}
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}
