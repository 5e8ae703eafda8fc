package storetest

import (
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

// fractions: amounts are counted in millionths, and kept exactly.
func fractions(t *testing.T, open Open) {
	for _, a := range amounts {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			l := counter.Limit{Algorithm: a, Count: 1, Fraction: 500_000, Window: time.Hour, Decimal: true}
			p := Policy(t, "p", l)
			take := func(n int64, allowed bool, left int64) counter.Result {
				t.Helper()
				r := h.take("s", n, p)[0]
				if r.Allowed != allowed || r.Remaining != left {
					t.Fatalf("%d millionths: %+v, want %d left", n, r, left)
				}
				return r
			}
			take(250_000, true, 1_250_000)
			take(1, true, 1_249_999)
			r := take(249_999, true, whole)
			take(whole+1, false, whole)
			if r := take(1_500_001, false, whole); r.RetryAfter != counter.Never {
				t.Fatalf("more than the limit: %+v", r)
			}
			h.giveBack(counter.Return{Counter: named(p, "s"), N: 249_999, Slot: r.Slot})
			take(1_249_999, true, 0)
			r = take(2, false, 0)
			h.step(r.RetryAfter - time.Microsecond)
			if got := h.take("s", 2, p)[0]; got.Allowed {
				t.Fatalf("allowed a microsecond before %v: %+v", r.RetryAfter, got)
			}
			h.step(time.Microsecond)
			if got := h.take("s", 2, p)[0]; !got.Allowed {
				t.Fatalf("refused after %v: %+v", r.RetryAfter, got)
			}

			// Beside requests, all or nothing.
			requests := Policy(t, "requests", hourly(counter.TokenBucket, 1))
			both := func() []counter.Result {
				return h.charge(counter.Charge{Counter: named(p, "t"), N: 500_000}, counter.Charge{Counter: named(requests, "t"), N: 1})
			}
			if rs := both(); !rs[0].Allowed || rs[0].Remaining != whole || !rs[1].Allowed || rs[1].Remaining != 0 {
				t.Fatalf("an amount and a request: %+v", rs)
			}
			for range 2 {
				if rs := both(); !rs[0].Allowed || rs[0].Remaining != whole || rs[1].Allowed {
					t.Fatalf("an amount, and no request: %+v", rs)
				}
			}
			if rs := h.take("t", 600_000, p, p); rs[0].Allowed || rs[1].Allowed || rs[0].Remaining != whole {
				t.Fatalf("0.6 and 0.6 of 1: %+v", rs)
			}
			if rs := h.take("t", 400_000, p, p); !rs[0].Allowed || !rs[1].Allowed || rs[0].Remaining != 200_000 {
				t.Fatalf("0.4 and 0.4 of 1: %+v", rs)
			}
			// Whole tokens of the same name are another counter.
			if r := h.take("s", 1, Policy(t, "p", hourly(a, 2)))[0]; !r.Allowed || r.Remaining != 1 {
				t.Fatalf("1 of 2 requests: %+v", r)
			}
			large := Policy(t, "large", counter.Limit{Algorithm: a, Count: counter.MaxTokens, Window: time.Hour, Decimal: true})
			if r := h.take("s", counter.MaxAmount-1, large)[0]; !r.Allowed || r.Remaining != 1 {
				t.Fatalf("all but a millionth of the largest amount: %+v", r)
			}
			if rs := h.take("s", counter.MaxAmount, large, large); rs[0].Allowed || rs[0].RetryAfter != counter.Never {
				t.Fatalf("twice the largest amount: %+v", rs)
			}
		})
	}
}

// calendarWindows: windows of a calendar begin at its edges, whatever their length, and a clock that is set back over one mints
// nothing.
func calendarWindows(t *testing.T, open Open) {
	berlin := counter.Calendar{Unit: counter.Month, Day: 15, Zone: "Europe/Berlin"}
	began := time.Date(2026, 2, 14, 23, 0, 0, 0, time.UTC)
	edge := time.Date(2026, 3, 14, 23, 0, 0, 0, time.UTC) // 28 days later
	next := time.Date(2026, 4, 14, 22, 0, 0, 0, time.UTC) // in summer time
	for _, decimal := range []bool{false, true} {
		name, each := "requests", int64(1)
		if decimal {
			name, each = "amounts", whole
		}
		t.Run(name, func(t *testing.T) {
			h := start(t, open)
			limit := counter.Limit{Algorithm: counter.FixedWindow, Count: 10, Window: 31 * 24 * time.Hour, Calendar: berlin, Decimal: decimal}
			p := Policy(t, "p", limit)
			at := func(to time.Time) { h.step(to.Sub(h.clock())) }
			take := func(n int64, allowed bool, left int64, from, to time.Time) counter.Result {
				t.Helper()
				r := h.take("s", n*each, p)[0]
				if r.Allowed != allowed || r.Remaining != left*each || r.Slot != from.UnixMicro() && allowed || r.ResetAfter != to.Sub(h.clock()) {
					t.Fatalf("%d at %v: %+v, want %d left, from %v to %v", n, h.clock(), r, left, from, to)
				}
				if retry := to.Sub(h.clock()); !allowed && r.RetryAfter != retry {
					t.Fatalf("%d at %v: %+v, want to wait for %v", n, h.clock(), r, retry)
				}
				return r
			}
			old := take(4, true, 6, began, edge)
			at(edge.Add(-time.Microsecond))
			take(6, true, 0, began, edge)
			take(1, false, 0, began, edge)
			at(edge)
			take(1, true, 9, edge, next)
			// What the last window took doesn't come back into this one.
			h.giveBack(counter.Return{Counter: named(p, "s"), N: 4 * each, Slot: old.Slot})
			take(1, true, 8, edge, next)

			// A second back, the edge is crossed a second time, after takes, refusals and looks.
			at(edge.Add(-time.Second))
			take(1, true, 7, edge, next)
			take(8, false, 7, edge, next)
			h.left(p, "s")
			at(edge.Add(time.Hour))
			take(7, true, 0, edge, next)
			at(edge.Add(-time.Hour))
			take(1, false, 0, edge, next)
			at(edge.Add(time.Second))
			take(1, false, 0, edge, next)

			// Further back, it counts in the window that it is then, and nobody waits for the one that was.
			before := time.Date(2026, 1, 14, 23, 0, 0, 0, time.UTC)
			at(before.Add(time.Hour))
			take(1, false, 0, before, began)
			at(began)
			take(10, true, 0, began, edge)
			at(next)
			take(10, true, 0, next, time.Date(2026, 5, 14, 22, 0, 0, 0, time.UTC))
		})
	}
	t.Run("past the limit", func(t *testing.T) {
		h := start(t, open)
		p := Policy(t, "p", counter.Limit{Algorithm: counter.FixedWindow, Count: 2, Window: 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Day}})
		p = p.With(func(d *counter.Definition) { d.CountRefused = true })
		h.step(time.Date(2026, 3, 15, 0, 0, 1, 0, time.UTC).Sub(Start))
		h.take("s", 2, p)
		h.step(-2 * time.Second)
		h.take("s", 1, p) // refused, and counted
		h.step(2 * time.Second)
		if r := h.take("s", 1, p)[0]; r.Allowed {
			t.Fatalf("the edge was crossed twice: %+v", r)
		}
	})
	t.Run("units", func(t *testing.T) {
		h := start(t, open)
		for i, c := range []struct {
			calendar counter.Calendar
			ends     time.Time
		}{
			{counter.Calendar{Unit: counter.Day}, time.Date(2026, 3, 15, 0, 0, 0, 0, time.UTC)},
			{counter.Calendar{Unit: counter.Day, Zone: "Asia/Tokyo"}, time.Date(2026, 3, 15, 15, 0, 0, 0, time.UTC)},
			{counter.Calendar{Unit: counter.Week}, time.Date(2026, 3, 15, 0, 0, 0, 0, time.UTC)}, // Start is a Saturday
			{counter.Calendar{Unit: counter.Week, Weekday: time.Monday}, time.Date(2026, 3, 16, 0, 0, 0, 0, time.UTC)},
			{counter.Calendar{Unit: counter.Month}, time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)},
		} {
			days := map[counter.CalendarUnit]time.Duration{counter.Day: 1, counter.Week: 7, counter.Month: 31}[c.calendar.Unit]
			p := Policy(t, "p", counter.Limit{Algorithm: counter.FixedWindow, Count: 10, Window: days * 24 * time.Hour, Calendar: c.calendar})
			if r := h.take("s", 1, p)[0]; !r.Allowed || r.Remaining != 9 || r.ResetAfter != c.ends.Sub(h.clock()) {
				t.Fatalf("calendar %d: %+v, want it to end at %v", i, r, c.ends)
			}
		}
	})
}
