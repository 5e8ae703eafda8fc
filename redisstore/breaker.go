package redisstore

import (
	"fmt"
	"sync/atomic"
	"time"
)

// opensAfter is how many calls must fail in a row before the breaker opens.
const opensAfter = 3

// breaker keeps checks from waiting for a server or a hash slot that can't be reached. It opens after opensAfter failures in a
// row. It closes when [Store.tend] reaches the server again, or [Store.lookAtSlots] the hash slot. Its zero value is closed.
//
// We don't use gobreaker or failsafe-go. Both let callers find out whether the server is back, so some checks would wait for a
// dead server, and both take a lock for each call (538 and 256 ns on two cores; this breaker takes 7). Neither remembers when
// the failures began, which operators want to know.
type breaker struct {
	open  atomic.Bool
	fails atomic.Int32 // in a row
	first atomic.Int64 // when the first of these failures was noticed, in Unix µs; 0 if the last call succeeded
	since atomic.Int64 // in Unix µs: while open, when the server was lost; otherwise, when it came back, or 0
	cause atomic.Pointer[string]
}

// unavailable is the error of checks while the breaker is open.
func (b *breaker) unavailable() error {
	if c := b.cause.Load(); c != nil {
		return fmt.Errorf("%w: %s", ErrUnavailable, *c)
	}
	return ErrUnavailable
}

// doubted reports whether the last call failed, or the breaker is open.
func (b *breaker) doubted() bool { return b.fails.Load() != 0 || b.open.Load() }

func (b *breaker) succeeded() {
	if b.fails.Load() != 0 { // most calls succeed, and needn't write
		b.first.Store(0)
		b.fails.Store(0)
	}
}

// failed counts a failure, and reports whether the breaker opened with it.
func (b *breaker) failed(err error) bool {
	n := b.fails.Add(1)
	if n == 1 || b.first.Load() == 0 {
		b.first.Store(time.Now().UnixMicro())
	}
	if n < opensAfter {
		return false
	}
	return b.trip(err)
}

// trip opens the breaker, and reports whether it was closed. The server counts as lost since the first of the failures in a
// row, not since the last.
func (b *breaker) trip(err error) bool {
	text := err.Error()
	b.cause.Store(&text)
	if b.open.Load() {
		return false
	}
	since := b.first.Load()
	if since == 0 {
		since = time.Now().UnixMicro()
	}
	b.since.Store(since) // before open, so that a goroutine that sees the breaker open also sees since when
	return b.open.CompareAndSwap(false, true)
}

func (b *breaker) close() {
	b.first.Store(0)
	b.fails.Store(0)
	b.open.Store(false)
	b.since.Store(time.Now().UnixMicro())
}
