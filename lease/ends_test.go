package lease

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

// TestWaitersAskForTheirCosts: the call after the one under way asks for all that is waited for, whatever each costs.
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
		if n := f.asks.Load(); n > 3 {
			t.Errorf("40 checks at once asked %d times", n)
		}
		s.withCounter(&weir.Counter{Policy: p, Subject: []byte("s")}, func(x *counter) {
			if x.pending != 0 {
				t.Errorf("nobody waits, and %d are pending", x.pending)
			}
		})
	})
}

// TestEachLeaseEndsInTime: unspent tokens go back just before their lease ends, of each counter by itself, and after a lull, too.
func TestEachLeaseEndsInTime(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := storetest.Policy(t, "p", weir.Limit{Algorithm: weir.FixedWindow, Count: 1_000_000, Window: time.Hour})
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
				s.withCounter(&weir.Counter{Policy: p, Subject: []byte(subject)}, func(x *counter) { held, end = x.held, x.leaseEnd })
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

// TestAnOutageGoesOnFromNothing: a counter with nothing left doesn't begin anew either.
func TestAnOutageGoesOnFromNothing(t *testing.T) {
	local := memstore.New(memstore.Options{Now: time.Now})
	bubble(t, Options{Local: local, Nodes: func() int { return 2 }}, func(t *testing.T, s *Store, f *far) {
		p := perDay(t, 400)
		for range 4 {
			warm(t, s, p, "s")
		}
		time.Sleep(2 * time.Second)
		f.lost.Store(true)
		take(s, charge(p, "s", 1))
		c := charge(p, "s", 1)
		c.Peek = true
		if got := take(local, c)[0].Remaining; got != 200 {
			t.Errorf("the local counter has %d left of 400, half of all are used", got)
		}
	})
}
