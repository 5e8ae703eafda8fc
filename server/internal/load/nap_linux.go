package load

import (
	"syscall"
	"time"
)

// nap sleeps for a few milliseconds, with an accuracy of 50 µs. It may return early. It uses a system call that blocks
// a thread, because the timers of Go's runtime are accurate only to milliseconds.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil) // a signal ends the sleep early, but the caller reads the clock anyway
}
