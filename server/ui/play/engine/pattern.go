package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// pattern adds arrivals until it is stopped.
type pattern struct {
	following int64
	then      func() int64 // returns the time of the following arrival
}

// Pattern starts a pattern of arrivals. The kinds are steady; poisson, which is random but the same in every replay;
// onoff, which is steady for half a window and then pauses for half a window; and boundary, which sends as many
// requests as the limit just before the end of a window, and again just after it. The rate is in requests per second.
// For boundary, it isn't used.
func (e *Engine) Pattern(kind string, rate float64) error {
	if kind != "boundary" && !(rate > 0 && rate <= maxLimit) {
		return fmt.Errorf("rate: must be above 0 and at most %d requests a second, got %v", maxLimit, rate)
	}
	if len(e.lanes) == 0 && kind == "boundary" {
		return fmt.Errorf("no limit applies to this request, so there is no window to burst around")
	}
	gap := max(1, int64(float64(time.Second/time.Microsecond)/rate))
	p := &pattern{following: e.at}
	half := max(gap, e.scale()/2)
	switch kind {
	case "steady":
		p.then = func() int64 { return p.following + gap }
	case "poisson":
		random := rand.New(rand.NewPCG(1, uint64(e.at)))
		p.then = func() int64 { return p.following + max(1, int64(random.ExpFloat64()*float64(gap))) }
	case "onoff":
		start := e.at
		p.then = func() int64 {
			if next := p.following + gap; next < start+half {
				return next
			}
			start += 2 * half
			return start
		}
	case "boundary":
		limit := e.lanes[0].policy.Limit
		count, window := int(min(limit.Count, maxLimit)), limit.Window.Microseconds()
		n, edge := 0, (e.begin+e.at)/window*window+window-e.begin
		if around(edge, window, count, 0) < e.at {
			edge += window
		}
		p.then = func() int64 {
			if n == 2*count { // pause for a window, so that the next burst finds the counters full again
				n, edge = 0, edge+2*window
			}
			n++
			return around(edge, window, count, n-1)
		}
		p.following = p.then()
	default:
		return fmt.Errorf("pattern: must be steady, poisson, onoff or boundary, got %q", kind)
	}
	e.Stop()
	e.patterns = append(e.patterns, p)
	e.run(e.at)
	return nil
}

// around returns the time of the nth request of a burst around the edge of a window. The burst lasts from 4 % of a
// window before the edge to 4 % after it.
func around(edge, window int64, count, n int) int64 {
	part := window / 25
	if n < count {
		return edge - part + part*int64(n)/int64(count)
	}
	return edge + part*int64(n-count)/int64(count)
}

// Stop stops the patterns, and removes their future arrivals.
func (e *Engine) Stop() {
	coming := slices.DeleteFunc(e.schedule[e.next:], func(a arrival) bool {
		if a.pattern != nil {
			e.charges -= a.charges
		}
		return a.pattern != nil
	})
	e.schedule, e.patterns, e.full = e.schedule[:e.next+len(coming)], nil, false
}

// fill adds the arrivals of patterns up to a time, and a few beyond it.
func (e *Engine) fill(to int64) {
	before := len(e.schedule)
	for _, p := range e.patterns {
		for !e.full && (p.following <= to || p.following <= to+e.ahead() && len(e.schedule)-e.next < maxComing) {
			e.add(arrival{at: p.following, pattern: p})
			p.following = p.then()
		}
	}
	if len(e.schedule) > before {
		e.order()
	}
}
