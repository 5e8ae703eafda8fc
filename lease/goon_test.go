package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

// TestAnOutageGoesOnRefusing checks that during an outage, a refusal by the store holds for its time, with the right time to
// retry, and no longer. A counter that wasn't refusing gives the error.
func TestAnOutageGoesOnRefusing(t *testing.T) {
	for _, a := range leasing {
		t.Run(fmt.Sprint(a), func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
				p := storetest.Policy(t, "p", counter.Limit{Algorithm: a, Count: 10, Window: 24 * time.Hour})
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
				var r [1]counter.Result
				if s.Take(over, []counter.Charge{charge(p, "s", 2)}, r[:]); r[0].Err != nil || r[0].Allowed {
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

// A request that needs more than the node holds spends the held tokens and asks for the rest. If the store doesn't answer, the
// request isn't decided, and the tokens come back.
func TestAnOutageDecidesNothing(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := perSecond(t, 1000)
		warm(t, s, p, "s")
		s.withCounter(&counter.Counter{Policy: p, Subject: []byte("s")}, func(x *borrower) {
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

// TestAllowGoesOnCounting checks that a rule that allows requests while the store is lost still counts clients that the node
// knows, with the whole limit. Only what refills passes, also in a second outage.
func TestAllowGoesOnCounting(t *testing.T) {
	bubble(t, Options{Nodes: func() int { return 4 }}, func(t *testing.T, s *Store, f *far) {
		local := memstore.New(memstore.Options{Now: time.Now})
		s.local = local
		rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "api", Limits: []counter.Limit{counter.PerMinute(100)}}}})
		if err != nil {
			t.Fatal(err)
		}
		l := weir.NewLimiter(s, rules, weir.Options{Local: local})
		check := func(key string) weir.Decision {
			d, _ := l.Check(t.Context(), &weir.Request{APIKey: key})
			return d
		}
		for outage := range 2 {
			for check("warm").Allowed {
			}
			f.lost.Store(true)
			passed := 0
			for range 100 {
				time.Sleep(120 * time.Millisecond) // 12 s in all, in which 20 tokens refill
				if d := check("warm"); d.Allowed {
					passed++
					if !d.Degraded {
						t.Errorf("not degraded: %+v", d)
					}
				}
			}
			if passed < 18 || passed > 20 {
				t.Errorf("outage %d: %d of 100 requests passed, and 20 tokens have refilled", outage+1, passed)
			}
			time.Sleep(time.Minute) // long enough for the limit: the node must not go on being stricter
			passed = 0
			for range 200 {
				if check("warm").Allowed {
					passed++
				}
			}
			if passed != 100 {
				t.Errorf("outage %d: %d of 200 requests passed after a minute, want 100", outage+1, passed)
			}
			for range 200 {
				if d := check("cold"); !d.Allowed || !d.Degraded {
					t.Fatalf("a client that the node doesn't know: %+v", d)
				}
			}
			f.lost.Store(false)
			time.Sleep(time.Minute)
		}
	})
}

// TestAnOutageOfOnePart checks that if a part of the store is lost, a known counter of that part refuses the request, and the
// other part gets its tokens back.
func TestAnOutageOfOnePart(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		local := memstore.New(memstore.Options{Now: time.Now})
		s.local = local
		p, q := perDay(t, 10), storetest.Policy(t, "q", counter.Limit{Count: 100, Window: 24 * time.Hour})
		l := weir.NewLimiter(s, nil, weir.Options{Local: local})
		take := func() weir.Decision {
			d, _ := private.Take(l, t.Context(), &weir.Request{Cost: 1}, []counter.Charge{charge(p, "s", 1), charge(q, "s", 1)}, nil)
			return d
		}
		for take().Allowed {
		}
		time.Sleep(2 * time.Second) // for longer than the refusal is believed
		f.lostPolicy.Store(p)
		for range 5 {
			if d := take(); d.Allowed || !d.Degraded {
				t.Errorf("nothing is left of one: %+v", d)
			}
		}
		if got := remaining(f, q, "s"); got != 90 {
			t.Errorf("%d are left of the other, want 90", got)
		}
	})
}
