package load

import (
	"syscall"
	"time"
)

// nap sleeps for a few milliseconds, to within 50 µs, or returns early. It is a system call that occupies a thread, since
// the runtime's timers wait in whole milliseconds here.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil) // a signal ends it early, and the caller looks at the clock anyway
}
