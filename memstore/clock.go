package memstore

import (
	"sync/atomic"
	"time"
)

// clock tells the time in µs since the Unix epoch. It reads the monotonic clock,
// which costs half of what the wall clock costs and doesn't jump, and looks at the
// wall clock once a second, since that is what windows are aligned to: a
// machine that slept, or whose clock was set, is followed within a second.
type clock struct {
	start  time.Time
	offset atomic.Int64 // wall clock − monotonic clock, µs
	synced atomic.Int64 // when that was taken, on the monotonic clock
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
	// Below a millisecond the difference is rounding: don't let the clock tremble.
	if drift > 1000 || drift < -1000 {
		c.offset.Add(drift)
	}
	c.synced.Store(mono)
}
