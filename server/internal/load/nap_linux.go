package load

import (
	"syscall"
	"time"
)

// nap sleeps for a few milliseconds, to within 50 µs, or returns early. It makes a system call that blocks a thread,
// because the timers of Go's runtime are only accurate to milliseconds.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil) // a signal ends it early, but the caller reads the clock anyway
}
