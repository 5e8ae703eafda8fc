package load

import (
	"syscall"
	"time"
)

// nap sleeps by a system call, to within some 50 µs: timers of the runtime wait
// in whole milliseconds here. It may return early; it occupies a thread, so it is for short times of one goroutine.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil) // a signal ends it early, and the caller looks at the clock anyway
}
