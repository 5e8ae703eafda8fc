package counter

import (
	"testing"
	"time"
)

func fixedWindow(n int64, w time.Duration) *Limit {
	return &Limit{Algorithm: FixedWindow, Count: n, Window: w}
}

// S9: a fixed window admits its whole limit on each side of an edge, within an instant.
func TestFixedWindowAdmitsTwiceAroundItsEdge(t *testing.T) {
	play(t, *fixedWindow(100, time.Minute), []row{
		{at: 30 * sec, peek: 1, ok: true, left: 100, reset: 30 * sec},
		{at: minute - 1, take: 100, ok: true, left: 0, reset: 1},
		{at: minute - 1, take: 1, left: 0, retry: 1, reset: 1},
		{at: minute, take: 100, ok: true, left: 0, reset: minute},
		{at: minute, take: 1, left: 0, retry: minute, reset: minute},
		{at: 2*minute - 1, take: 1, left: 0, retry: 1, reset: 1},
		{at: 2 * minute, take: 1, ok: true, left: 99, reset: minute},
	})
}

func TestFixedWindowCounts(t *testing.T) {
	t.Run("costs", func(t *testing.T) {
		play(t, *fixedWindow(10, time.Second), []row{
			{at: 0, take: 11, left: 10, retry: never, reset: sec},
			{at: 0, take: 7, ok: true, left: 3, reset: sec},
			{at: 400 * msec, take: 4, left: 3, retry: 600 * msec, reset: 600 * msec},
			{at: 400 * msec, take: 3, ok: true, left: 0, reset: 600 * msec},
			{at: 5*sec + 1, peek: 10, ok: true, left: 10, reset: sec - 1},
		})
	})
	t.Run("what goes back to its window, and not to the next", func(t *testing.T) {
		play(t, *fixedWindow(10, time.Second), []row{
			{at: 0, take: 8, ok: true, left: 2, reset: sec},
			{at: 500 * msec, back: 5, of: 0, left: 7, reset: 500 * msec},
			{at: 500 * msec, back: 50, of: 0, left: 10, reset: 500 * msec},
			{at: 500 * msec, take: 8, ok: true, left: 2, reset: 500 * msec},
			{at: sec, take: 4, ok: true, left: 6, reset: sec},
			{at: sec, back: 4, of: 3, left: 6, reset: sec},
			{at: 5 * sec, back: 4, of: 4, left: 10, reset: sec},
		})
	})
	t.Run("on through a change of rule", func(t *testing.T) {
		play(t, *fixedWindow(100, time.Minute), []row{
			{at: 0, take: 60, ok: true, left: 40, reset: minute},
			{at: 0, rule: fixedWindow(500, time.Minute), left: 440, reset: minute},
			{at: 0, rule: fixedWindow(50, time.Minute), take: 1, left: 0, retry: minute, reset: minute},
			{at: minute, take: 50, ok: true, left: 0, reset: minute},
		})
	})
	// If the clock runs back to before the window, the window starts again with its count and has its full length.
	t.Run("on through a clock that runs backwards", func(t *testing.T) {
		play(t, *fixedWindow(100, time.Minute), []row{
			{at: 90 * sec, take: 100, ok: true, left: 0, reset: 30 * sec},
			{at: 70 * sec, take: 1, left: 0, retry: 50 * sec, reset: 50 * sec},
			{at: 30 * sec, take: 1, left: 0, retry: minute, reset: minute},
			{at: 90*sec - 1, take: 1, left: 0, retry: 1, reset: 1},
			{at: 90 * sec, take: 100, ok: true, left: 0, reset: minute},
			{at: 150 * sec, take: 1, ok: true, left: 99, reset: minute},
			{at: 330 * sec, take: 1, ok: true, left: 99, reset: 30 * sec}, // idle for long enough: aligned again
		})
	})
}

// A machine whose clock isn't set is in 1970, within the first window, and still limits.
func TestWindowsHoldIn1970(t *testing.T) {
	for _, a := range []Algorithm{FixedWindow, SlidingCounter} {
		p, err := NewPolicy("p", Limit{Algorithm: a, Count: 1, Window: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		s, first := p.Take(State{}, 3600*1_000_000, 1)
		if _, second := p.Take(s, 3600*1_000_000, 1); !first.Allowed || second.Allowed {
			t.Errorf("%s: %+v, then %+v", a, first, second)
		}
	}
}

// Take is Try and Report in one.
func (p *Policy) Take(s State, now, n int64) (State, Result) {
	s, ok := p.Try(s, now, n)
	if ok {
		return s, p.Report(s, now, n, Taken)
	}
	return s, p.Report(s, now, n, Refused)
}
