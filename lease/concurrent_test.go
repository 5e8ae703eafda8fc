package lease

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
	"github.com/weirhq/weir/storetest"
)

// TestConcurrentAsksAreOne checks that a request waits for a call under way, and uses its answer.
func TestConcurrentAsksAreOne(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := perHour(t, 1_000_000)
		warm(t, s, p, "s")
		time.Sleep(2 * ledger.MaxLease)
		for range 2 {
			take(s, charge(p, "s", 1))
		}
		s.withCounter(&counter.Counter{Policy: p, Subject: []byte("s")}, func(x *borrower) { x.held = 0 })
		f.delay = 10 * time.Millisecond
		asks := f.asks.Load()
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				if r := take(s, charge(p, "s", 1))[0]; !r.Allowed || r.Err != nil {
					t.Errorf("%+v", r)
				}
			})
		}
		all.Wait()
		if n := f.asks.Load() - asks; n > 3 {
			t.Errorf("200 checks at once asked %d times", n)
		}
		// A request that gives up doesn't affect the others.
		s.withCounter(&counter.Counter{Policy: p, Subject: []byte("s")}, func(x *borrower) { x.held = 0 })
		ctx, cancel := context.WithCancel(t.Context())
		all.Go(func() {
			results := make([]counter.Result, 1)
			s.Take(ctx, []counter.Charge{charge(p, "s", 1)}, results)
			if !errors.Is(results[0].Err, context.Canceled) {
				t.Errorf("%+v", results[0])
			}
		})
		synctest.Wait()
		for range 10 {
			all.Go(func() {
				if r := take(s, charge(p, "s", 1))[0]; !r.Allowed || r.Err != nil {
					t.Errorf("after another gave up: %+v", r)
				}
			})
		}
		synctest.Wait()
		cancel()
		all.Wait()
		// All waiting requests get an error at once.
		s.withCounter(&counter.Counter{Policy: p, Subject: []byte("s")}, func(x *borrower) { x.held = 0 })
		f.lost.Store(true)
		begun := time.Now()
		for range 200 {
			all.Go(func() {
				if r := take(s, charge(p, "s", 1))[0]; !errors.Is(r.Err, errLost) {
					t.Errorf("%+v", r)
				}
			})
		}
		all.Wait()
		if took := time.Since(begun); took > f.delay {
			t.Errorf("failing took %v of virtual time", took)
		}
	})
}

// TestLayers checks that a request that one limit refuses doesn't change the tokens held of other limits, wherever it is
// decided.
func TestLayers(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		wide := storetest.Policy(t, "wide", counter.Limit{Count: 1_000_000, Window: time.Hour})
		narrow := storetest.Policy(t, "narrow", counter.Limit{Count: 500, Window: 24 * time.Hour})
		admitted := 0
		for range 2000 {
			rs := take(s, charge(wide, "s", 1), charge(narrow, "s", 1))
			if rs[0].Err != nil || rs[1].Err != nil || !rs[0].Allowed {
				t.Fatalf("%+v", rs)
			}
			if rs[1].Allowed {
				admitted++
			}
			time.Sleep(200 * time.Microsecond)
		}
		if admitted != 500 {
			t.Errorf("admitted %d of 500", admitted)
		}
		time.Sleep(2 * ledger.MaxLease)
		if got := remaining(f, wide, "s"); got < 1_000_000-500 {
			t.Errorf("the wide limit counted %d", 1_000_000-got)
		}
		// Nothing comes back twice, including held tokens.
		held := int64(100)
		s.withCounter(&counter.Counter{Policy: wide, Subject: []byte("s")}, func(x *borrower) {
			x.held, x.leaseEnd, x.fresh = held, s.now()+int64(time.Second), s.now()+int64(time.Second)
		})
		third := storetest.Policy(t, "third", counter.Limit{Count: 1_000_000, Window: time.Hour})
		warm(t, s, third, "s")
		s.withCounter(&counter.Counter{Policy: third, Subject: []byte("s")}, func(x *borrower) { x.held = 0 })
		if rs := take(s, charge(wide, "s", 1), charge(narrow, "s", 1), charge(third, "s", 1)); rs[1].Allowed || !rs[0].Allowed || !rs[2].Allowed {
			t.Errorf("%+v", rs)
		}
		if got := holds(s, wide, "s"); got != held {
			t.Errorf("%d are held after a refusal, %d before it", got, held)
		}
		if asked := s.Stats().Asked; asked > 2000 {
			t.Errorf("%d of 4000 charges were asked for", asked)
		}
	})
}

// TestConcurrentLayersAreOne checks that concurrent requests for the same two counters share calls.
func TestConcurrentLayersAreOne(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p, q := perDay(t, 100_000), storetest.Policy(t, "q", counter.Limit{Count: 100_000, Window: time.Hour})
		for range 2 {
			take(s, charge(p, "s", 1), charge(q, "s", 1))
		}
		asks := f.asks.Load()
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				for _, r := range take(s, charge(p, "s", 1), charge(q, "s", 1)) {
					if !r.Allowed || r.Err != nil {
						t.Errorf("%+v", r)
					}
				}
			})
		}
		all.Wait()
		if n := f.asks.Load() - asks; n > 5 {
			t.Errorf("200 checks at once asked %d times", n)
		}
		if got := remaining(f, p, "s"); got != 100_000-202 {
			t.Errorf("%d are left", got)
		}
	})
}

// TestWaitingBesideALimitThatIsntLent checks a request that waits for another's call while it also has a charge to a limit that
// is never lent, and one that is already decided. Only the tokens that it waits for are pending.
func TestWaitingBesideALimitThatIsntLent(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		strict, busy, warmed := storetest.Policy(t, "strict", counter.Limit{Count: 100_000, Window: time.Hour}), perHour(t, 1_000_000), storetest.Policy(t, "warmed", counter.Limit{Count: 1_000_000, Window: time.Hour})
		strict = strict.With(func(d *counter.Definition) { d.Strict = true })
		warm(t, s, warmed, "s")
		for range 2 {
			take(s, charge(busy, "s", 1))
		}
		s.withCounter(&counter.Counter{Policy: busy, Subject: []byte("s")}, func(x *borrower) { x.held = 0 })
		s.withCounter(&counter.Counter{Policy: warmed, Subject: []byte("s")}, func(x *borrower) {
			x.held, x.leaseEnd = 100, s.now()+int64(time.Second)
		})
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				for _, r := range take(s, charge(strict, "s", 1), charge(busy, "s", 1), charge(warmed, "s", 1)) {
					if !r.Allowed || r.Err != nil {
						t.Errorf("%+v", r)
					}
				}
			})
		}
		time.Sleep(f.delay / 2)
		for p, want := range map[*counter.Policy]int64{busy: 19, warmed: 0} {
			s.withCounter(&counter.Counter{Policy: p, Subject: []byte("s")}, func(x *borrower) {
				if x.pending != want {
					t.Errorf("%s: %d are pending, want %d", p.Name, x.pending, want)
				}
			})
		}
		all.Wait()
	})
}
