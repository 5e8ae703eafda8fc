package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/storetest"
)

// TestStats: every charge is counted once, where it was decided, by how many limits a request has and whatever comes of it.
func TestStats(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		wide := storetest.Policy(t, "wide", weir.Limit{Count: 1_000_000, Window: time.Hour})
		narrow := storetest.Policy(t, "narrow", weir.Limit{Count: 50, Window: time.Hour})
		if got := s.Stats(); got != (Stats{}) {
			t.Errorf("of a new store: %+v", got)
		}
		charges := uint64(0)
		check := func(what string, most float64) Stats {
			t.Helper()
			got := s.Stats()
			if sum := float64(got.Local + got.Asked); sum < (1-most)*float64(charges) || sum > (1+most)*float64(charges) {
				t.Errorf("%s: %+v of %d charges", what, got, charges)
			}
			return got
		}
		for range 1000 {
			take(s, charge(wide, "s", 1))
			charges++
			time.Sleep(time.Millisecond)
		}
		got := check("admitted", 0)
		if got.Local < 900 || got.Counters != 1 || got.Tokens != holds(s, wide, "s") || got.Tokens == 0 {
			t.Errorf("admitted: %+v, and %d are held", got, holds(s, wide, "s"))
		}
		// One limit refuses, and the other is known or must be asked for.
		for range 2000 {
			take(s, charge(wide, "s", 1), charge(narrow, "s", 1))
			charges += 2
			time.Sleep(10 * time.Millisecond)
		}
		if after := check("refused", 0.05); after.Local <= got.Local || after.Asked <= got.Asked {
			t.Errorf("refused: %+v", after)
		}
		for range 100_000 { // a flood
			take(s, charge(narrow, "s", 1))
			charges++
			time.Sleep(13 * time.Microsecond)
		}
		check("a flood", 0.05)
		time.Sleep(time.Minute)
		if got := check("a minute later", 0.05); got.Tokens != 0 {
			t.Errorf("held when all leases have ended: %+v", got)
		}
	})
	bubble(t, Options{Counters: ways}, func(t *testing.T, s *Store, f *far) {
		p, charges, before := perSecond(t, 1_000_000), uint64(0), Stats{}
		for i := range 100 {
			for range 50 {
				take(s, charge(p, fmt.Sprint(i), 1))
				charges++
				time.Sleep(time.Millisecond)
			}
			got := s.Stats()
			if got.Local < before.Local || got.Asked < before.Asked || got.Evictions < before.Evictions || got.Counters > ways {
				t.Fatalf("%+v came after %+v", got, before)
			}
			before = got
		}
		if before.Evictions == 0 || before.Local == 0 || before.Local+before.Asked != charges {
			t.Errorf("%+v of %d charges", before, charges)
		}
	})
}

// BenchmarkStats is what a scrape costs with as many counters as a node knows.
func BenchmarkStats(b *testing.B) {
	s := New(&far{Lender: storetest.NewModel(time.Now)}, Options{})
	p := storetest.Policy(b, "p", weir.PerMinute(100))
	for i := range ways << 16 {
		c := charge(p, fmt.Sprint(i), 1)
		s.add(s.hash(&c.Counter), &c, s.now())
	}
	for b.Loop() {
		s.Stats()
	}
	b.ReportMetric(float64(s.Stats().Counters), "counters")
}
