package lease

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

func perMinute(t *testing.T, n int64) *weir.Policy {
	return storetest.Policy(t, "p", weir.Limit{Count: n, Window: time.Minute})
}

// drained makes a counter one that has nothing left, and is asked for more than refills.
func drained(t *testing.T, s *Store, p *weir.Policy) {
	t.Helper()
	for range 5000 {
		if r := take(s, charge(p, "s", 1))[0]; !r.Allowed && holds(s, p, "s") > 5 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("nothing is lent of what is yet to refill")
}

// TestWhatRefillsIsBorrowedAhead by a node that takes all of it: it admits what the store alone would, and when it would, and
// hardly asks.
func TestWhatRefillsIsBorrowedAhead(t *testing.T) {
	for _, a := range []weir.Algorithm{weir.TokenBucket, weir.LeakyBucket} {
		t.Run(a.String(), func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
				p := storetest.Policy(t, "p", weir.Limit{Algorithm: a, Count: 100, Window: time.Minute})
				exact := storetest.NewModel(time.Now)
				asked, late, admitted := int64(0), 0, 0
				for i := range 3000 {
					want, got := take(exact, charge(p, "s", 1))[0], take(s, charge(p, "s", 1))[0]
					if i == 1000 {
						asked = f.asks.Load()
					}
					if i >= 1000 && got.Allowed {
						admitted++
					}
					switch {
					case got.Remaining > want.Remaining+1:
						t.Fatalf("request %d: %d left, where the store alone has %d", i, got.Remaining, want.Remaining)
					case want.Allowed && !got.Allowed:
						late++
					case got.Allowed && !want.Allowed:
						late--
					}
					if late < -1 || late > 2 {
						t.Fatalf("request %d: %d behind the store alone", i, late)
					}
					time.Sleep(100 * time.Millisecond)
				}
				if asked = f.asks.Load() - asked; asked*6 > int64(admitted) {
					t.Errorf("asked %d times for %d tokens", asked, admitted)
				}
			})
		})
	}
}

// TestWhatIsBorrowedAheadTellsWhenToComeBack: who waits for RetryAfter is admitted, whatever the cost, and nobody much before.
func TestWhatIsBorrowedAheadTellsWhenToComeBack(t *testing.T) {
	for _, cost := range []int64{1, 2, 5, 20} {
		for _, early := range []time.Duration{0, 5 * time.Millisecond} {
			t.Run(fmt.Sprintf("%d, %v early", cost, early), func(t *testing.T) {
				bubble(t, Options{}, func(t *testing.T, s *Store, _ *far) {
					p := perMinute(t, 100)
					drained(t, s, p)
					peek := charge(p, "s", cost)
					peek.Peek = true
					seen, r := take(s, peek)[0], take(s, charge(p, "s", cost))[0]
					if r.Allowed || seen.Allowed || r.Remaining != 0 || seen.Remaining != 0 {
						t.Fatalf("got %+v, and before %+v", r, seen)
					}
					if cost <= 5 && (seen.RetryAfter-r.RetryAfter).Abs() > time.Millisecond {
						t.Errorf("a peek says %v, and a refusal %v", seen.RetryAfter, r.RetryAfter)
					}
					time.Sleep(r.RetryAfter - early)
					if r := take(s, charge(p, "s", cost))[0]; r.Allowed != (early == 0) {
						t.Errorf("after as long: %+v", r)
					}
				})
			})
		}
	}
}

// TestWhatIsBorrowedAheadGoesBack when it isn't spent.
func TestWhatIsBorrowedAheadGoesBack(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := perMinute(t, 100)
		drained(t, s, p)
		time.Sleep(weir.MaxSlowLease)
		if n := remaining(f, p, "s"); n < 15 || n > 17 {
			t.Errorf("%d are left after %v, in which 16 refill", n, weir.MaxSlowLease)
		}
	})
}

// TestColdCountersDontPutOutHotOnes: for one that seldom comes there is no place while all are taken.
func TestColdCountersDontPutOutHotOnes(t *testing.T) {
	bubble(t, Options{Counters: ways}, func(t *testing.T, s *Store, f *far) {
		s.sights.init(1 << 22) // so many that no two meet
		p := perMinute(t, 1000)
		round := func(i int) {
			for hot := range ways {
				take(s, charge(p, fmt.Sprint("hot", hot), 1))
				time.Sleep(50 * time.Millisecond)
			}
			take(s, charge(p, fmt.Sprint("cold", i%10), 1))
		}
		for i := range 100 {
			round(i)
		}
		begun := s.Asked()
		for i := range 100 {
			round(i)
		}
		s.table.all(func(x *holding) {
			if string(x.subject[:3]) != "hot" {
				t.Errorf("%s has a place", x.subject)
			}
		})
		if n := s.Asked() - begun; n > 100+100*ways/4 {
			t.Errorf("asked %d times for %d checks of hot counters, and 100 of others", n, 100*ways)
		}
	})
}

// TestWhoWaitsIsAskedFor together: of a counter at its limit, too, many at once cost about one ask a round trip.
func TestWhoWaitsIsAskedFor(t *testing.T) {
	for _, a := range []weir.Algorithm{weir.TokenBucket, weir.LeakyBucket} {
		t.Run(a.String(), func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
				f.delay = 2 * time.Millisecond
				p := storetest.Policy(t, "p", weir.Limit{Algorithm: a, Count: 50_000, Window: time.Second})
				var admitted atomic.Int64
				var all sync.WaitGroup
				begun := time.Now()
				for i := range 200 {
					all.Go(func() {
						time.Sleep(time.Duration(i) * 5 * time.Microsecond)
						for time.Since(begun) < 3*time.Second {
							if take(s, charge(p, "s", 1))[0].Allowed {
								admitted.Add(1)
							}
							time.Sleep(500 * time.Microsecond)
						}
					})
				}
				all.Wait()
				if asks := f.asks.Load(); asks > 1600 {
					t.Errorf("asked %d times in %v", asks, time.Since(begun))
				}
				if n, most := float64(admitted.Load()), 50_000*(1+time.Since(begun).Seconds()); n < 0.99*most {
					t.Errorf("admitted %.0f of %.0f", n, most)
				}
			})
		})
	}
}

// parts keeps how many returns came at a time, at most, and in all.
type parts struct {
	weir.Store
	most, all int
}

func (s *parts) GiveBack(ctx context.Context, once weir.Once, keep time.Duration, returns []weir.Return) error {
	s.most, s.all = max(s.most, len(returns)), s.all+len(returns)
	return s.Store.GiveBack(ctx, once, keep, returns)
}

// TestManyLeasesGoBackInParts: the store has others to serve.
func TestManyLeasesGoBackInParts(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		inner := &parts{Store: f.Store}
		f.Store, f.delay = inner, 0
		p := perMinute(t, 100)
		for range 3 {
			for i := range 1000 {
				take(s, charge(p, fmt.Sprint(i), 1))
			}
			time.Sleep(500 * time.Millisecond)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if inner.all < 900 || inner.most > 64 {
			t.Errorf("%d leases were given back, %d at a time", inner.all, inner.most)
		}
	})
}

// TestAnOutageKnowsWhatWasBorrowed: what was spent of tokens that were yet to refill isn't there when they have.
func TestAnOutageKnowsWhatWasBorrowed(t *testing.T) {
	local := memstore.New(memstore.Options{Now: time.Now})
	bubble(t, Options{Local: local}, func(t *testing.T, s *Store, f *far) {
		p := perMinute(t, 100)
		drained(t, s, p)
		f.lost.Store(true)
		for range 200 {
			time.Sleep(50 * time.Millisecond)
			if r := take(s, charge(p, "s", 1))[0]; r.Err != nil {
				peek := charge(p, "s", 1)
				peek.Peek = true
				if n := take(local, peek)[0].Remaining; n > 2 {
					t.Errorf("%d are left here, of a counter that had none", n)
				}
				return
			}
		}
		t.Error("the store wasn't asked")
	})
}
