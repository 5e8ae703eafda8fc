package load

import (
	"syscall"
	"time"
)

// nap sleeps by a system call, to within some 50 µs: timers of the runtime wait
// in whole milliseconds here. It may return early. It occupies a thread, so it
// is for one goroutine, and for times of few milliseconds.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&ts, nil) // a signal ends it early, and the caller looks at the clock anyway
}
