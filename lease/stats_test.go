package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/storetest"
)

// TestStats checks that every charge is counted once, where it was decided, however many limits a request has.
func TestStats(t *testing.T) {
	bubble(t, Options{Counters: ways}, func(t *testing.T, s *Store, f *far) {
		wide := storetest.Policy(t, "wide", counter.Limit{Count: 1_000_000, Window: time.Hour})
		narrow := storetest.Policy(t, "narrow", counter.Limit{Count: 50, Window: time.Hour})
		if got := s.Stats(); got != (Stats{}) {
			t.Errorf("of a new store: %+v", got)
		}
		before, sum := Stats{}, uint64(0)
		run := func(what string, times int, each time.Duration, charges ...counter.Charge) Stats {
			t.Helper()
			for range times {
				take(s, charges...)
				time.Sleep(each)
			}
			got := s.Stats()
			all, want := float64(got.Local+got.Asked-sum), float64(times*len(charges))
			if all < 0.9*want || all > 1.1*want || got.Local <= before.Local || got.Asked <= before.Asked {
				t.Errorf("%s: %+v after %+v and %.0f charges", what, got, before, want)
			}
			before, sum = got, got.Local+got.Asked
			return got
		}
		got := run("admitted", 20_000, time.Millisecond, charge(wide, "s", 1))
		if got.Counters != 1 || got.Tokens != holds(s, wide, "s") || got.Tokens == 0 || got.Asked > got.Local {
			t.Errorf("admitted: %+v, and %d are held", got, holds(s, wide, "s"))
		}
		// One limit refuses. The other one is known, or the store must be asked.
		run("refused", 20_000, 10*time.Millisecond, charge(wide, "s", 1), charge(narrow, "s", 1))
		run("a flood", 100_000, 13*time.Microsecond, charge(narrow, "s", 1))
		time.Sleep(time.Minute)
		if got := s.Stats(); got.Tokens != 0 {
			t.Errorf("held when all leases have ended: %+v", got)
		}
		for i := range 100 {
			run("others", 500, time.Millisecond, charge(wide, fmt.Sprint(i), 1))
		}
		if got := s.Stats(); got.Evictions < 50 || got.Counters > ways {
			t.Errorf("of 100 counters, where there is room for %d: %+v", ways, got)
		}
	})
}

// BenchmarkStats measures a scrape with as many counters as a node can know.
func BenchmarkStats(b *testing.B) {
	s := New(&far{Lender: storetest.NewModel(time.Now)}, Options{})
	p := storetest.Policy(b, "p", counter.PerMinute(100))
	for i := range ways << 16 {
		c := charge(p, fmt.Sprint(i), 1)
		s.add(s.hash(&c.Counter), &c, s.now())
	}
	for b.Loop() {
		s.Stats()
	}
	b.ReportMetric(float64(s.Stats().Counters), "counters")
}
