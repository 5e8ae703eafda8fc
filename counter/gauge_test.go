package counter

import (
	"slices"
	"testing"
)

// failer is the part of rapid.T and testing.T that the checks use.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func policyOf(t failer, l Limit) *Policy {
	t.Helper()
	p, err := NewPolicy("test", l)
	if err != nil {
		t.Fatalf("NewPolicy(%+v): %v", l, err)
	}
	return p
}

// gauge is one counter of any algorithm, held as a store would hold it.
type gauge struct {
	p   *Policy
	s   State
	log *Log
}

func newGauge(p *Policy) *gauge { return &gauge{p: p, log: new(Log)} }

func (g *gauge) isLog() bool { return g.p.Limit.Algorithm == SlidingLog }

func (g *gauge) clone() *gauge {
	l := *g.log
	l.ring = slices.Clone(l.ring)
	return &gauge{g.p, g.s, &l}
}

func (g *gauge) try(now, n int64) (ok bool) {
	if g.isLog() {
		return g.p.TryLog(g.log, now, n)
	}
	g.s, ok = g.p.Try(g.s, now, n)
	return ok
}

func (g *gauge) report(now, n int64, v Verdict) Result {
	if g.isLog() {
		return g.p.ReportLog(g.log, now, n, v)
	}
	r := Result{true, true, true, 7, 7, 7, 7, 7, 7, ErrUsed} // whatever was there before
	g.p.ReportTo(&r, g.s, now, n, v)
	return r
}

func (g *gauge) take(now, n int64) Result {
	if g.try(now, n) {
		return g.report(now, n, Taken)
	}
	return g.report(now, n, Refused)
}

func (g *gauge) fits(now, n int64) bool { return g.clone().try(now, n) }

// peek answers as take would, and leaves the counter as it is.
func (g *gauge) peek(now, n int64) Result {
	if g.fits(now, n) {
		return g.clone().report(now, n, Fits)
	}
	return g.clone().report(now, n, Refused)
}

// giveBack returns n tokens to the counter and reports how many it accepted, in units.
func (g *gauge) giveBack(now, n, slot int64) int64 {
	at := now
	if g.p.Limit.isBucket() {
		at = min(now, g.s.Time) // what has refilled since isn't settled: by other numbers it may be less
	}
	held := g.held(at)
	if g.isLog() {
		g.p.ReturnLog(g.log, now, n, slot)
	} else {
		g.s = g.p.Return(g.s, now, n, slot)
	}
	return held - g.held(at)
}

// anchored returns the counter as it is after a check at the given moment that took nothing.
func (g *gauge) anchored(now int64) *gauge {
	c := g.clone()
	c.s.Time = min(c.s.Time, now)
	g.p.prune(c.log, now)
	return c
}

// unit returns how many units of held and giveBack make one token.
func (g *gauge) unit() int64 {
	if g.p.Limit.isBucket() {
		return micro
	}
	return 1
}

// held returns how much of the limit is used, in units.
func (g *gauge) held(now int64) int64 {
	switch g.p.Limit.Algorithm {
	case FixedWindow:
		return g.p.roll(g.s, now).Level
	case SlidingCounter:
		c := g.p.roll(g.s, now)
		return c.Level + c.Prev
	case SlidingLog:
		return g.anchored(now).log.sum
	}
	return g.p.capacity - g.p.Level(g.s, now)
}

// longest returns the longest wait that the counter can cause, in µs.
func (g *gauge) longest() int64 {
	switch {
	case g.p.Limit.Algorithm == TokenBucket:
		return g.p.fill
	case g.p.Limit.isBucket():
		return max(g.p.fill, g.p.Wait(g.s.Level)) // a bucket made smaller still has all its water to lose
	case g.p.Limit.Algorithm == SlidingCounter:
		return 2 * g.p.window
	}
	return g.p.window
}

// admission is a log's record of one moment.
type admission struct{ at, n int64 }

// entries returns the log's records at the given moment.
func (g *gauge) entries(now int64) (all []admission) {
	l := g.anchored(now).log
	for i := range l.n {
		if n := l.cost(i); n != 0 {
			all = append(all, admission{l.at(i).time, n})
		}
	}
	return all
}

// --- step tables ---

// row is one step of a table. It sets the clock, then changes the rule and gives back tokens if the row says
// so, then takes tokens or peeks. The test compares the counter's answer with the rest of the row. Times are
// in µs.
type row struct {
	at   int64  // after midnight
	rule *Limit // from here on
	back int64  // tokens that go back …
	of   int    // … of those that this row took
	take int64
	peek int64 // without take or peek, the row only checks what is left

	ok                         bool
	left, retry, reset, delays int64
}

func play(t *testing.T, l Limit, rows []row) {
	t.Helper()
	g := newGauge(policyOf(t, l))
	slots := make([]int64, len(rows))
	for i, r := range rows {
		now := midnight + r.at
		if r.rule != nil {
			g.p = policyOf(t, *r.rule)
		}
		if r.back > 0 {
			g.giveBack(now, r.back, slots[r.of])
		}
		var got Result
		switch {
		case r.take > 0:
			got = g.take(now, r.take)
		case r.peek > 0:
			got = g.peek(now, r.peek)
		default:
			got, r.ok = g.clone().report(now, 0, Fits), true
		}
		slots[i] = got.Slot
		want := Result{Allowed: r.ok, Remaining: r.left, RetryAfter: micros(r.retry), ResetAfter: micros(r.reset), Delay: micros(r.delays), Slot: got.Slot}
		if r.retry == never {
			want.RetryAfter = Never
		}
		if got != want {
			t.Fatalf("row %d (%+v):\n got %+v\nwant %+v", i, r, got, want)
		}
	}
}

// --- random trials ---
