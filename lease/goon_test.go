package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/storetest"
)

// TestAnOutageGoesOnRefusing: what the store refused for longer than the outage has lasted stays refused, with the
// time that is true, and no longer; one that wasn't refused gets the error.
func TestAnOutageGoesOnRefusing(t *testing.T) {
	for _, a := range leasing {
		t.Run(fmt.Sprint(a), func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
				p := storetest.Policy(t, "p", weir.Limit{Algorithm: a, Count: 10, Window: 24 * time.Hour})
				for take(s, charge(p, "s", 2))[0].Allowed {
				}
				told := take(s, charge(p, "s", 2))[0].RetryAfter
				if told < time.Minute {
					t.Fatalf("told to retry after %v: the test shows nothing", told)
				}
				f.lost.Store(true)
				time.Sleep(10 * time.Second) // for longer than it is believed while there is a store
				for range 3 {
					r := take(s, charge(p, "s", 2))[0]
					if r.Err != nil || r.Allowed || r.RetryAfter < told-11*time.Second || r.RetryAfter > told {
						t.Errorf("%+v, want a refusal for %v", r, told-10*time.Second)
					}
				}
				if r := take(s, charge(p, "other", 2))[0]; !errors.Is(r.Err, errLost) {
					t.Errorf("of another: %+v", r)
				}
				over, cancel := context.WithCancel(t.Context())
				cancel() // the caller's time is over before the store's
				var r [1]weir.Result
				if s.Take(over, []weir.Charge{charge(p, "s", 2)}, r[:]); r[0].Err != nil || r[0].Allowed {
					t.Errorf("a caller without time: %+v", r[0])
				}
				time.Sleep(told)
				if r := take(s, charge(p, "s", 2))[0]; !errors.Is(r.Err, errLost) {
					t.Errorf("after the refusal: %+v", r)
				}
			})
		})
	}
}

// A request that needs more than the node holds spends what there is and asks for the rest. If the store doesn't answer,
// the request isn't decided, and the tokens come back.
func TestAnOutageDecidesNothing(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := perSecond(t, 1000)
		warm(t, s, p, "s")
		s.withCounter(&weir.Counter{Policy: p, Subject: []byte("s")}, func(x *counter) {
			x.held, x.leaseEnd = 8, s.now()+int64(80*time.Millisecond)
			x.state = p.AtLevel(12_000_000, storeTime(x.clock, s.now()))
		})
		f.lost.Store(true)
		if r := take(s, charge(p, "s", 11))[0]; !errors.Is(r.Err, errLost) || r.Allowed {
			t.Errorf("11 of 12, of which the node holds 8: %+v", r)
		}
		if n := holds(s, p, "s"); n != 8 {
			t.Errorf("it holds %d tokens after that, want 8", n)
		}
	})
}
