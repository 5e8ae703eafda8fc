package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/storetest"
)

// TestRememberedRefusalsAreTrue checks that a refusal from memory equals the store's, to within the time of a round trip,
// however long the wait is and however often the client comes back.
func TestRememberedRefusalsAreTrue(t *testing.T) {
	windows := []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour}
	for _, a := range leasing {
		for _, window := range windows {
			for _, every := range []time.Duration{time.Millisecond, 30 * time.Millisecond} { // without the lock, and with it
				t.Run(fmt.Sprint(a, window, every), func(t *testing.T) {
					bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
						p := storetest.Policy(t, "p", counter.Limit{Algorithm: a, Count: 100, Window: window})
						for take(s, charge(p, "s", 1))[0].Allowed {
							time.Sleep(time.Microsecond)
						}
						asked, remembered := f.asks.Load(), 0
						for i := range 200 {
							c := charge(p, "s", 1+int64(i%3))
							got := take(s, c)[0]
							if f.asks.Load() == asked && !got.Allowed {
								remembered++
								c.Peek = true
								truth(t, p, c.N, got, take(f.Lender, c)[0])
							}
							asked = f.asks.Load()
							time.Sleep(every)
						}
						if remembered < 20 && window > time.Second {
							t.Errorf("of 200 checks only %d were refused from memory", remembered)
						}
					})
				})
			}
		}
	}
}

// truth compares a refusal from memory with the store's at the same moment. Memory may be late by a round trip and by what
// stretch adds, but never early.
func truth(t *testing.T, p *counter.Policy, n int64, got, want counter.Result) {
	t.Helper()
	const trip = 2 * time.Millisecond
	late := trip
	if a := p.Limit.Algorithm; a == counter.TokenBucket || a == counter.LeakyBucket {
		late += time.Duration(maxPause)
	}
	if wait := want.RetryAfter; got.RetryAfter < wait || got.RetryAfter > wait+late {
		t.Errorf("%d tokens: told to retry after %v, the store says %v", n, got.RetryAfter, wait)
	}
	if d := got.ResetAfter - want.ResetAfter; d < -trip || d > trip {
		t.Errorf("%d tokens: told that it is full again after %v, the store says %v", n, got.ResetAfter, want.ResetAfter)
	}
	if got.Remaining > want.Remaining {
		t.Errorf("%d tokens: told that %d remain, the store says %d", n, got.Remaining, want.Remaining)
	}
}

// TestRefusalsAfterWhatIsHeldWasSpent checks that a remembered refusal reflects what is left now, and not what was left before
// the node spent tokens that it held.
func TestRefusalsAfterWhatIsHeldWasSpent(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, _ *far) {
		p := storetest.Policy(t, "p", counter.Limit{Count: 20, Window: time.Hour})
		for range 2 {
			take(s, charge(p, "s", 7))
		}
		s.withCounter(&counter.Counter{Policy: p, Subject: []byte("s")}, func(x *borrower) {
			x.held, x.leaseEnd, x.known = 1, s.now()+int64(time.Second), s.now()+int64(time.Second)
		})
		for i, want := range []int64{6, 5} {
			for range 2 { // the second one from what is remembered
				if r := take(s, charge(p, "s", 19))[0]; r.Allowed || r.Remaining != want {
					t.Errorf("%d: 19 of %d: %+v", i, want, r)
				}
			}
			if r := take(s, charge(p, "s", 1))[0]; i == 0 && (!r.Allowed || r.Remaining != 5) {
				t.Errorf("1 of what is held: %+v", r)
			}
		}
	})
}
