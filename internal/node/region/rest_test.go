package region

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
)

// TestNothingIsLeft checks that once requests stop, no cells, asks or goroutines are left.
func TestNothingIsLeft(t *testing.T) {
	for _, l := range []counter.Limit{
		counter.PerSecond(100),
		{Algorithm: counter.LeakyBucket, Count: 10, Window: time.Second, Burst: 200},
		{Algorithm: counter.FixedWindow, Count: 200, Window: 10 * time.Second},
		{Algorithm: counter.SlidingCounter, Count: 200, Window: 10 * time.Second},
		{Algorithm: counter.FixedWindow, Count: 200, Window: 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Day}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSimulation(t, 3)
			luck := luck{rand.New(rand.NewPCG(1, 1))}
			p, err := counter.NewPolicy("p", l)
			if err != nil {
				t.Fatal(err)
			}
			p = p.With(func(d *counter.Definition) { d.Floor = 5 })
			c := s.count(p, "s")
			s.run()
			for range 1000 {
				time.Sleep(luck.upTo(20 * time.Millisecond))
				i := luck.IntN(3)
				s.running.Go(func() { s.take(i, c, 1) })
			}
			time.Sleep(25 * time.Second) // until all loans have ended
			for i, site := range s.sites {
				site.stakes.mu.Lock()
				if len(site.stakes.queues)+len(site.stakes.flights)+len(site.stakes.tidies) > 0 {
					t.Errorf("%v: %s has %d queues, %d flights, and %d loans to look at", l, s.names[i], len(site.stakes.queues), len(site.stakes.flights), len(site.stakes.tidies))
				}
				site.stakes.mu.Unlock()
			}
			s.end()
			if s.broken != "" {
				t.Error(s.broken)
			}
			time.Sleep(25*time.Hour + time.Minute)
			for i, site := range s.sites {
				cells := site.stakes.cells.(*watched).memoryCells
				_ = cells.Update(context.Background(), []string{"other"}, func([][]byte, int64) []Cell { return make([]Cell, 1) })
				if n := len(cells.values); n > 0 {
					t.Errorf("%v: %s has %d cells", l, s.names[i], n)
				}
			}
		})
	}
}

// TestKeptNoLonger checks how long a region keeps the cell of an unused counter.
func TestKeptNoLonger(t *testing.T) {
	for _, c := range []struct {
		limit counter.Limit
		most  time.Duration
	}{
		{counter.PerSecond(100), 30 * time.Second}, // a loan's term and margin, and the time to refill
		{counter.Limit{Algorithm: counter.FixedWindow, Count: 200, Window: 10 * time.Second}, 11 * time.Second},
		{counter.Limit{Algorithm: counter.SlidingCounter, Count: 200, Window: 10 * time.Second}, 21 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSimulation(t, 3)
			p, err := counter.NewPolicy("p", c.limit)
			if err != nil {
				t.Fatal(err)
			}
			p = p.With(func(d *counter.Definition) { d.Floor = 5 })
			counted := s.count(p, "s")
			s.run()
			s.take(away, counted, 50)
			time.Sleep(c.most)
			for i, site := range s.sites {
				cells := site.stakes.cells.(*watched).memoryCells
				cells.mu.Lock()
				for _, v := range cells.values {
					if v.until > s.clocks[i].now() {
						t.Errorf("%v: %s keeps %s for %v more", c.limit, s.names[i], v.value, time.Duration(v.until-s.clocks[i].now())*time.Microsecond)
					}
				}
				cells.mu.Unlock()
			}
			s.end()
		})
	}
}
