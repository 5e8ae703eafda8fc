package region

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
)

// TestNothingIsLostOfIdleLoans checks that tokens that a region borrowed and doesn't use go back, whether its requests
// were admitted, refused or only peeked.
func TestNothingIsLostOfIdleLoans(t *testing.T) {
	for _, c := range []struct {
		name       string
		times      int
		cost, used int64 // tokens that the home's clients used before
		peek       bool
		every      time.Duration
	}{
		{name: "a large request", times: 1, cost: 30},
		{name: "ten at once", times: 10, cost: 1},
		{name: "a stream", times: 20, cost: 2, every: 50 * time.Millisecond},
		{name: "one that is refused", times: 1, cost: 95, used: 10},
		{name: "many that are refused", times: 40, cost: 95, used: 10, every: 100 * time.Millisecond},
		{name: "a peek", times: 1, cost: 95, used: 10, peek: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSimulation(t, 3)
			s.run()
			l := counter.Limit{Count: 100, Window: 24 * time.Hour, Burst: 100}
			counted := s.limit(l)
			used := c.used
			s.take(home, counted, c.used)
			for range c.times {
				if c.peek {
					var r [1]counter.Result
					s.sites[away].Take(t.Context(), []counter.Charge{{Counter: counted.Counter, N: c.cost, Peek: true}}, r[:])
				} else if s.take(away, counted, c.cost).Allowed {
					used += c.cost
				}
				time.Sleep(c.every)
			}
			time.Sleep(14 * time.Second)
			left := int64(0)
			for i := range s.sites {
				for s.take(i, counted, 1).Allowed {
					left++
				}
			}
			if left != 100-used {
				t.Errorf("%s: %d are left, of 100 of which %d are used", c.name, left, used)
			}
			time.Sleep(30 * time.Second)
			for i, site := range s.sites {
				if site.stakes.mu.Lock(); len(site.stakes.tidies) > 0 {
					t.Errorf("%s: %s still polls an unused counter", c.name, s.names[i])
				}
				site.stakes.mu.Unlock()
			}
			s.end()
		})
	}
}

// TestLargeRequestsInTwoRegions checks that after a large request in one region, a large request in another region is
// still admitted.
func TestLargeRequestsInTwoRegions(t *testing.T) {
	for _, l := range []counter.Limit{
		{Algorithm: counter.FixedWindow, Count: 1000, Window: time.Hour},
		{Algorithm: counter.SlidingCounter, Count: 1000, Window: time.Hour},
		{Count: 1000, Window: time.Hour, Burst: 1000},
	} {
		for _, gap := range []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond, time.Second} {
			for _, to := range []int{home, third} {
				synctest.Test(t, func(t *testing.T) {
					s := newSimulation(t, 3)
					s.run()
					c := s.limit(l)
					time.Sleep(3 * time.Second)
					if !s.take(away, c, 60).Allowed {
						t.Errorf("%v: 60 of 1000 are refused", l.Algorithm)
					}
					time.Sleep(gap)
					if r := s.take(to, c, 400); !r.Allowed {
						t.Errorf("%v, %v later: 400 of 940 are refused in %s: %s", l.Algorithm, gap, s.names[to], fmt.Sprint(r))
					}
					s.end()
				})
			}
		}
	}
}

// TestHopelessRequestsStarveNobody sends requests for more tokens than are left, which move all tokens to their region.
// Small requests in other regions get tokens back.
func TestHopelessRequestsStarveNobody(t *testing.T) {
	for _, l := range []counter.Limit{
		{Algorithm: counter.FixedWindow, Count: 300, Window: 24 * time.Hour},
		{Algorithm: counter.SlidingCounter, Count: 300, Window: 24 * time.Hour},
		{Count: 100, Window: 24 * time.Hour, Burst: 100},
	} {
		for _, every := range []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second} {
			for _, small := range []int{home, third} {
				synctest.Test(t, func(t *testing.T) {
					s := newSimulation(t, 3)
					s.run()
					c := s.limit(l)
					s.take(home, c, l.Max()/10)
					s.running.Go(func() {
						for range 8 * time.Second / every {
							s.running.Go(func() { s.take(away, c, l.Max()-5) })
							time.Sleep(every)
						}
					})
					refused := 0
					for range 16 {
						time.Sleep(500 * time.Millisecond)
						if !s.take(small, c, 1).Allowed {
							refused++
						}
					}
					if refused > 1 { // all tokens may be in flight once
						t.Errorf("%v, every %v: %d of 16 are refused in %s", l.Algorithm, every, refused, s.names[small])
					}
					s.end()
				})
			}
		}
	}
}
