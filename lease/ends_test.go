package lease

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

// TestWaitersAskForTheirCosts checks that the next call asks for all tokens that waiting requests need, whatever each request
// costs.
func TestWaitersAskForTheirCosts(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := perHour(t, 1_000_000)
		var all sync.WaitGroup
		for i := range int64(40) {
			all.Go(func() {
				if r := take(s, charge(p, "s", 2+i%7))[0]; !r.Allowed || r.Err != nil {
					t.Errorf("%+v", r)
				}
			})
		}
		all.Wait()
		if n := f.asks.Load(); n > 5 { // those that come while nobody asks make a call of their own
			t.Errorf("40 checks at once asked %d times", n)
		}
		s.withCounter(&counter.Counter{Policy: p, Subject: []byte("s")}, func(x *borrower) {
			if x.pending != 0 {
				t.Errorf("nobody waits, and %d are pending", x.pending)
			}
		})
	})
}

// TestEachLeaseEndsInTime checks that unspent tokens go back just before their own lease ends, even after a pause.
func TestEachLeaseEndsInTime(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := storetest.Policy(t, "p", counter.Limit{Algorithm: counter.FixedWindow, Count: 1_000_000, Window: time.Hour})
		spent := int64(0)
		for range 3 {
			for i := range 150 {
				for every := 1; every <= 3; every++ { // so that leases end at different times
					if i%every == 0 && i < 150-20*every {
						take(s, charge(p, "s", 1), charge(p, fmt.Sprint("s", every), 1))
						spent++
					}
				}
				time.Sleep(time.Millisecond)
			}
			lent, leases := f.returns.Load(), 0
			for _, subject := range []string{"s3", "s2", "s1", "s"} {
				var held, end int64
				s.withCounter(&counter.Counter{Policy: p, Subject: []byte(subject)}, func(x *borrower) { held, end = x.held, x.leaseEnd })
				if left := end - s.now(); held == 0 || left < 3*tick {
					continue // it is about to end
				}
				lent += held
				leases++
				time.AfterFunc(time.Duration(end-s.now()-3*tick), func() {
					if n := holds(s, p, subject); n != held {
						t.Errorf("%s: 15 ms before the lease ends %d of %d are held", subject, n, held)
					}
				})
				time.AfterFunc(time.Duration(end-s.now()), func() {
					if n := holds(s, p, subject); n != 0 {
						t.Errorf("%s: when the lease ends %d of %d are held", subject, n, held)
					}
				})
			}
			if leases < 2 {
				t.Fatal("leases ended too early: the test shows nothing")
			}
			time.Sleep(time.Second)
			if n := f.returns.Load(); n != lent {
				t.Errorf("%d came back, want %d", n, lent)
			}
			if n := remaining(f, p, "s"); n != 1_000_000-spent {
				t.Errorf("%d left after %d were spent", n, spent)
			}
		}
	})
}

// TestLateReturnsOfWindows checks that a busy node may give back late, through its calendar or with the next check. While the
// window is open, no token is lost, and none goes to the next window.
func TestLateReturnsOfWindows(t *testing.T) {
	for _, a := range []counter.Algorithm{counter.FixedWindow, counter.SlidingCounter} {
		for name, late := range map[string]func(s *Store, p *counter.Policy) (spent int64){
			"calendar": func(s *Store, _ *counter.Policy) int64 {
				s.leases.look()
				return 0
			},
			"check": func(s *Store, p *counter.Policy) int64 {
				take(s, charge(p, "s", 1))
				return 1
			},
		} {
			t.Run(fmt.Sprint(a, " ", name), func(t *testing.T) {
				bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
					p := storetest.Policy(t, "p", counter.Limit{Algorithm: a, Count: 100_000, Window: time.Minute})
					time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + time.Second)))
					hold := func() (held int64) {
						warm(t, s, p, "s")
						s.leases.mu.Lock()
						s.leases.timer.Stop() // as if it were late
						s.leases.mu.Unlock()
						if held = holds(s, p, "s"); held == 0 {
							t.Fatal("nothing is held: the test shows nothing")
						}
						return held
					}
					spent := int64(100)
					hold()
					time.Sleep(200 * time.Millisecond)
					spent += late(s, p)
					time.Sleep(time.Second)
					if got := remaining(f, p, "s"); got != 100_000-spent {
						t.Errorf("%d are left after %d were spent", got, spent)
					}
					hold()
					time.Sleep(2 * time.Minute) // two windows
					spent = late(s, p)
					time.Sleep(time.Second)
					if got := remaining(f, p, "s"); got != 100_000-spent {
						t.Errorf("%d are left in a window in which %d were spent", got, spent)
					}
				})
			})
		}
	}
}

// TestALateCalendarForgetsNoLease checks that no ended lease is forgotten: not if the timer is late and another lease of the
// counter begins first, and not if the lease ended before the store's answer came.
func TestALateCalendarForgetsNoLease(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := storetest.Policy(t, "p", counter.Limit{Algorithm: counter.FixedWindow, Count: 1_000_000, Window: time.Hour})
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + time.Second)))
		warm(t, s, p, "due")
		s.leases.mu.Lock()
		s.leases.timer.Stop() // as if it were late
		s.leases.mu.Unlock()
		if holds(s, p, "due") == 0 {
			t.Fatal("nothing is held: the test shows nothing")
		}
		time.Sleep(200 * time.Millisecond)
		warm(t, s, p, "new")
		s.leases.look()
		time.Sleep(time.Second)
		for _, subject := range []string{"due", "new"} {
			if got := remaining(f, p, subject); got != 1_000_000-100 {
				t.Errorf("%s: %d are left after 100 were spent", subject, got)
			}
		}
		warm(t, s, p, "late")
		s.withCounter(&counter.Counter{Policy: p, Subject: []byte("late")}, func(x *borrower) { x.held = 0 })
		before := remaining(f, p, "late")
		f.delay = 300 * time.Millisecond
		take(s, charge(p, "late", 1))
		if holds(s, p, "late") == 0 {
			t.Fatal("nothing was lent: the test shows nothing")
		}
		time.Sleep(time.Second)
		if got := remaining(f, p, "late"); got != before-1 {
			t.Errorf("%d are left, want %d: a lease that came too late isn't given back", got, before-1)
		}
	})
}

// TestHeldTokensWhenTheRulesChange checks that if a limit's numbers change, held tokens go back with the next check, and all
// unspent tokens are left. If a limit is only written again, they stay.
func TestHeldTokensWhenTheRulesChange(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		limit := counter.Limit{Algorithm: counter.FixedWindow, Count: 1_000_000, Window: time.Hour}
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + time.Second)))
		p := storetest.Policy(t, "p", limit)
		warm(t, s, p, "s")
		spent := int64(102) // with the two below
		for ; holds(s, p, "s") < 5; spent++ {
			take(s, charge(p, "s", 1))
		}
		held := holds(s, p, "s")
		returned, asks := f.returns.Load(), f.asks.Load()
		same := storetest.Policy(t, "p", limit)
		take(s, charge(same, "s", 1))
		if n := holds(s, same, "s"); n != held-1 || f.returns.Load() != returned || f.asks.Load() != asks {
			t.Errorf("the same numbers: %d of %d are held, %d came back, %d asks", n, held, f.returns.Load()-returned, f.asks.Load()-asks)
		}
		limit.Count = 2_000_000
		other := storetest.Policy(t, "p", limit)
		take(s, charge(other, "s", 1))
		if n := f.asks.Load() - asks; n != 1 {
			t.Errorf("other numbers: %d asks, want 1", n)
		}
		time.Sleep(time.Second)
		if got := f.returns.Load() - returned; got < held-1 {
			t.Errorf("%d came back, and %d were held", got, held-1)
		}
		if got := remaining(f, other, "s"); got != 2_000_000-spent {
			t.Errorf("%d are left after %d were spent", got, spent)
		}
	})
}

// TestAnOutageGoesOnFromNothing checks that a counter with nothing left doesn't start over either.
func TestAnOutageGoesOnFromNothing(t *testing.T) {
	local := memstore.New(memstore.Options{Now: time.Now})
	bubble(t, Options{Local: local, Nodes: func() int { return 2 }}, func(t *testing.T, s *Store, f *far) {
		p := perDay(t, 400)
		p = p.With(func(d *counter.Definition) { d.OnStoreFailure = counter.FailLocal })
		for range 4 {
			warm(t, s, p, "s")
		}
		time.Sleep(2 * time.Second)
		f.lost.Store(true)
		if r := take(s, charge(p, "s", 1))[0]; r.Allowed || r.Err != nil || !r.Local {
			t.Errorf("nothing is left: %+v", r)
		}
		time.Sleep(24 * time.Hour / 400) // one has refilled
		take(s, charge(p, "s", 1))
		c := charge(p, "s", 1)
		c.Peek = true
		if got := take(local, c)[0].Remaining; got != 201 {
			t.Errorf("the local counter has %d left of 400, half of 399 are used", got)
		}
	})
}
