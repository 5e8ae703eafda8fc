// Package inflight bounds how many requests a node decides at a time, so that under overload those
// that it accepts are still answered in time.
package inflight

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// PerCore is the default number of requests in flight for each core. A check is mostly CPU work, so
// more of them would only wait for a core, and so would Redis' replies.
const PerCore = 256

// Default returns PerCore times the number of cores that this process may use.
func Default() int { return PerCore * runtime.GOMAXPROCS(0) }

// Patience is the longest that a request waits for a place.
//
// If nothing waited, refused clients would return at once, and a node busy with refusing them would
// have no time for the rest: reading and refusing a request costs a fourth of a check. Waiting
// costs nothing.
const Patience = time.Second

// line is how many requests may wait for each place.
const line = 32

// Gate bounds the requests in flight. A nil Gate lets everything in. Make one with [New].
type Gate struct {
	places  chan struct{}
	waiting atomic.Int64
}

// New returns a Gate with n places, or nil, which means no bound, if n is 0 or less.
func New(n int) *Gate {
	if n <= 0 {
		return nil
	}
	return &Gate{places: make(chan struct{}, n)}
}

// Enter takes a place, and waits for one if necessary, in order of arrival. It returns false if too
// many requests wait, if no place becomes free in time, or if ctx ends. After true, the caller must
// call Leave.
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

// Leave frees a place.
func (g *Gate) Leave() {
	if g != nil {
		<-g.places
	}
}
