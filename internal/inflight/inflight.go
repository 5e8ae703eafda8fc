// Package inflight bounds how many requests a node decides at a time, so that under overload those
// that it accepts are still answered in time.
package inflight

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// PerCore is the default number of requests in flight for each core. A check is mostly CPU work. Beyond this number,
// checks would only wait for a core, and so would the code that reads Redis' replies.
const PerCore = 256

// Default returns PerCore times the number of cores that this process may use.
func Default() int { return PerCore * runtime.GOMAXPROCS(0) }

// Patience is the longest that a request waits before it is refused.
//
// If requests were refused without waiting, refused clients would return at once, and a node would be so busy refusing
// them that it would have no time for other requests: reading and refusing a request costs a fourth of a check. Waiting
// costs nothing.
const Patience = time.Second

// line is how many requests may wait for each request that may be in flight.
const line = 32

// Gate bounds the requests in flight. A nil Gate has no bound. Make one with [New].
type Gate struct {
	places  chan struct{}
	waiting atomic.Int64
}

// New returns a Gate that admits up to n requests at a time. If n is 0 or less, it returns nil, which means no bound.
func New(n int) *Gate {
	if n <= 0 {
		return nil
	}
	return &Gate{places: make(chan struct{}, n)}
}

// Enter admits a request. If n requests are in flight, it waits, and requests are admitted in order of arrival. It
// returns false if too many requests are waiting already, if the wait exceeds Patience, or if ctx ends. If it returns
// true, the caller must call Leave.
func (g *Gate) Enter(ctx context.Context) bool {
	if g == nil {
		return true
	}
	select {
	case g.places <- struct{}{}:
		return true
	default:
	}
	defer g.waiting.Add(-1)
	if g.waiting.Add(1) > int64(line*cap(g.places)) {
		return false
	}
	enough := time.NewTimer(Patience)
	defer enough.Stop()
	select {
	case g.places <- struct{}{}: // channels serve waiters in order
		return true
	case <-enough.C:
	case <-ctx.Done():
	}
	return false
}

// In returns how many requests are in flight.
func (g *Gate) In() int {
	if g == nil {
		return 0
	}
	return len(g.places)
}

// Leave says that an admitted request has ended.
func (g *Gate) Leave() {
	if g != nil {
		<-g.places
	}
}
