// Package inflight bounds how many requests a node works on at a time, so that those it takes on are served in time
// however many come.
package inflight

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// PerCore is how many requests a node works on at a time by default, for each of its cores. A check is mostly
// work: more of them would only wait for a core, and what is read from Redis with them.
const PerCore = 256

// Default is PerCore for the cores that this process may use.
func Default() int { return PerCore * runtime.GOMAXPROCS(0) }

// Patience is the longest that a request waits for a place.
//
// Without waiting, a client that is shed comes back at once, and a node that is busy answering
// those has no time left for the rest: reading a request and refusing it costs a fourth of a check.
// Waiting requests cost nothing.
const Patience = time.Second

// line is how many requests may wait to each place.
const line = 32

// Gate lets in so many requests at a time. A nil Gate lets all in. Make one with [New].
type Gate struct {
	places  chan struct{}
	waiting atomic.Int64
	timers  sync.Pool // reused: a request that is shed should cost next to nothing
}

// New makes a Gate of n places; nil, for no bound, if n is 0 or less.
func New(n int) *Gate {
	if n <= 0 {
		return nil
	}
	g := &Gate{places: make(chan struct{}, n)}
	g.timers.New = func() any { return time.NewTimer(Patience) }
	return g
}

// Enter takes a place, and waits for one if it must: first come, first served. It reports false if the line is
// too long, if no place became free in time, or if the context ended first. If it is true, Leave must follow.
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
	enough := g.timers.Get().(*time.Timer)
	enough.Reset(Patience)
	defer func() {
		enough.Stop()
		g.timers.Put(enough)
	}()
	select {
	case g.places <- struct{}{}: // channels serve waiters in turn, and none can slip in
		return true
	case <-enough.C:
	case <-ctx.Done():
	}
	return false
}

// In is how many requests are in.
func (g *Gate) In() int {
	if g == nil {
		return 0
	}
	return len(g.places)
}

// Leave gives the place back.
func (g *Gate) Leave() {
	if g != nil {
		<-g.places
	}
}
