package memstore

import (
	"sync/atomic"
	"time"
)

// clock returns the time in µs since the Unix epoch. It reads the monotonic clock, which costs half
// as much as the wall clock and doesn't jump. Windows are aligned to the wall clock, so once a
// second the clock adjusts to the wall clock, in case the machine slept or its clock was set.
type clock struct {
	start  time.Time
	offset atomic.Int64 // wall clock − monotonic clock, µs
	synced atomic.Int64 // when offset was measured, on the monotonic clock
}

const syncEvery = int64(time.Second / time.Microsecond)

func (c *clock) init() {
	c.start = time.Now()
	c.offset.Store(c.start.UnixMicro())
}

func (c *clock) now() int64 {
	mono := time.Since(c.start).Microseconds()
	if mono-c.synced.Load() >= syncEvery {
		c.sync(mono)
	}
	return c.offset.Load() + mono
}

func (c *clock) sync(mono int64) {
	wall := time.Now()
	drift := wall.UnixMicro() - wall.Sub(c.start).Microseconds() - c.offset.Load()
	// Differences below a millisecond are rounding errors. Ignore them, so that the clock doesn't jitter.
	if drift > 1000 || drift < -1000 {
		c.offset.Add(drift)
	}
	c.synced.Store(mono)
}
