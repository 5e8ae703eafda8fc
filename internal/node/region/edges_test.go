package region

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
	"github.com/weirhq/weir/internal/redistest"
)

// TestRepeatedReservationsStay checks that if a check is repeated and another limit refuses it, the first reservation
// stays.
func TestRepeatedReservationsStay(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		money, rate := sharedPolicy(t, "money", budget), sharedPolicy(t, "rate", counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: time.Hour})
		h := &counter.Hold{ID: counter.Once{7}, For: time.Hour}
		m := asks(money, "a", 500)
		m.Hold = h
		if r := take(us, m, asks(rate, "a", 1)); !r[0].Allowed || !r[1].Allowed {
			t.Fatal(r)
		}
		drainOf(t, us, rate, "a")
		if r := take(us, m, asks(rate, "a", 1)); r[1].Allowed {
			t.Fatal(r)
		}
		peek := asks(money, "a", 1)
		peek.Peek = true
		before := take(us, peek)[0].Remaining
		_ = us.GiveBack(t.Context(), counter.Once{9}, time.Hour, []counter.Return{{Counter: m.Counter, N: 500, Hold: h, Used: 500}})
		if n := drainOf(t, us, money, "a"); n > 500 {
			t.Errorf("500 reserved and used; %d left before it was settled, then %d admitted of 1000", before, n)
		}
	})
}

// TestOwnReservationsStay checks the same for a region's own limit, next to a global limit that refuses.
func TestOwnReservationsStay(t *testing.T) {
	for _, travels := range []bool{false, true} {
		inTime(t, func(t *testing.T, us, eu, ap *site) {
			money, rate := policyOf(t, "money", budget, false), policyOf(t, "rate", counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: time.Hour}, true)
			rate = rate.With(func(d *counter.Definition) { d.Travels, d.Floor = travels, 5 })
			h := &counter.Hold{ID: counter.Once{7}, For: time.Hour}
			m := asks(money, "a", 500)
			m.Hold = h
			take(eu, m, asks(rate, "a", 1))
			drainOf(t, eu, rate, "a")
			r := take(eu, m, asks(rate, "a", 1))
			peek := asks(money, "a", 1)
			peek.Peek = true
			if n := take(eu, peek)[0].Remaining; n != 500 {
				t.Errorf("rate travels %v: 500 reserved of 1000, the check was repeated and refused (%v): %d left", travels, r[1].Allowed, n)
			}
		})
	}
}

// TestSlidingHomeMoves moves the home of a sliding counter. The new home doesn't know what the old one counted in the
// previous window.
func TestSlidingHomeMoves(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		p := sharedPolicy(t, "s", counter.Limit{Algorithm: counter.SlidingCounter, Count: 1000, Window: 20 * time.Minute})
		now := time.Now()
		time.Sleep(now.Truncate(p.Limit.Window).Add(2*p.Limit.Window - 20*time.Second).Sub(now))
		n := drainOf(t, us, p, "a")
		if err := us.link.Move(t.Context(), "us", "eu", false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Second)
		if m := drainOf(t, eu, p, "a"); n+m > 1100 {
			t.Errorf("%d are admitted 20 s before the window ends, and %d 20 s later, want at most 1100 together", n, m)
		}
	})
}

// TestRetryTimesAreNeverTooShort checks that, without other requests, a client that waits as long as it was told is
// admitted.
func TestRetryTimesAreNeverTooShort(t *testing.T) {
	for _, n := range []int64{1, 2, 5, 30} {
		inTime(t, func(t *testing.T, us, eu, ap *site) {
			b := sharedPolicy(t, "b", counter.Limit{Count: 60, Window: 10 * time.Minute, Burst: 100})
			drainOf(t, us, b, "a")
			drainOf(t, eu, b, "a")
			drainOf(t, ap, b, "a")
			for _, s := range []*site{us, eu} {
				r := take(s, asks(b, "a", n))[0]
				if r.Allowed {
					continue
				}
				for i := range 5 {
					time.Sleep(r.RetryAfter + 200*time.Millisecond)
					first := r.RetryAfter
					r = take(s, asks(b, "a", n))[0]
					if r.Allowed {
						break
					}
					t.Errorf("%s n=%d try %d: refused after a RetryAfter of %v; now %v, remaining %d", s.link.name, n, i, first, r.RetryAfter, r.Remaining)
				}
				drainOf(t, us, b, "a")
				drainOf(t, eu, b, "a")
				drainOf(t, ap, b, "a")
			}
		})
	}
}

func asks(p *counter.Policy, subject string, n int64) counter.Charge {
	return counter.Charge{Counter: counter.Counter{Policy: p, Subject: []byte(subject)}, N: n}
}

// TestHomeOfSomeRules checks that a region that rules name as their home can't be drained. If it was drained before the
// rules named it, it still admits no more than the limit.
func TestHomeOfSomeRules(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		p := sharedPolicy(t, "w", budget)
		p = p.With(func(d *counter.Definition) { d.Home = "ap" })
		n := drainOf(t, ap, p, "a")
		if err := us.link.SetState(t.Context(), "ap", Drained, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * beatEvery)
		if m := drainOf(t, ap, p, "a"); n+m > 1000 {
			t.Errorf("%d, and %d more", n, m)
		}
		rules, err := weir.Compile(weir.Rules{Version: 1, Rules: []weir.Rule{{ID: "w", Global: true, Home: "eu", Limits: []counter.Limit{counter.PerMinute(100)}}}})
		if err != nil {
			t.Fatal(err)
		}
		us.link.Serve(weir.NewLimiter(us.own, rules, weir.Options{}), us.own)
		if err := us.link.SetState(t.Context(), "eu", Drained, false); err == nil {
			t.Error("eu is the home of w")
		}
	})
}

// TestRefusalsAreRemembered checks that a region doesn't ask the home again right after a refusal, except for requests
// that need fewer tokens.
func TestRefusalsAreRemembered(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		eu.refusals.believed = believeFor
		p := policyOf(t, "small", counter.Limit{Algorithm: counter.FixedWindow, Count: 10, Window: time.Hour}, true)
		take(eu, asks(p, "a", 8))
		first := take(eu, asks(p, "a", 5))[0]
		if first.Allowed {
			t.Fatalf("%+v", first)
		}
		time.Sleep(100 * time.Millisecond)
		take(us, counter.Charge{Counter: counter.Counter{Policy: p, Subject: []byte("a")}, N: 1}) // the home's counter changes
		if r := take(eu, asks(p, "a", 6))[0]; r.Allowed || r.Remaining != first.Remaining || r.RetryAfter != first.RetryAfter-100*time.Millisecond {
			t.Errorf("the home was asked again: %+v after %+v", r, first)
		}
		if r := take(eu, asks(p, "a", 1))[0]; !r.Allowed {
			t.Errorf("one fits: %+v", r)
		}
		time.Sleep(believeFor)
		if r := take(eu, asks(p, "a", 5))[0]; r.Allowed || r.Remaining != 0 {
			t.Errorf("the home wasn't asked again: %+v", r)
		}
	})
}

// tighten fills Redis almost to its limit.
func tighten(t *testing.T, redis *redistest.Server) {
	t.Helper()
	if _, err := redis.Do(t.Context(), "SET", "large", strings.Repeat("x", 16<<20)); err != nil {
		t.Fatal(err)
	}
	used, err := redis.Memory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := redis.Do(t.Context(), "CONFIG", "SET", "maxmemory", fmt.Sprint(used*5/4)); err != nil {
		t.Fatal(err)
	}
}

func untilTight(t *testing.T, cells Cells) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := redistest.Until(ctx, func(context.Context) error {
		if !cells.Tight() {
			return errors.New("there is room")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestGuestsMakeNoStakes checks that when cells are nearly full, guests, whose names may be made up, can't create new
// stakes. Guests that have a stake keep it, and other clients can still create one.
func TestGuestsMakeNoStakes(t *testing.T) {
	redis, store := openRedis(t)
	memory := MemoryCells().(*memoryCells)
	fill := map[string]func(){
		"memory": func() {
			for i := range maxCells * 3 / 4 {
				memory.values[fmt.Sprint(i)] = kept{until: math.MaxInt64}
			}
		},
		"redis": func() { tighten(t, redis) },
	}
	for name, cells := range map[string]Cells{"memory": memory, "redis": RedisCells(store)} {
		us := world(t, time.Now, "us", "eu")[0]
		s := NewStore(us.own, us.link, cells)
		guest := func(subject string) counter.Charge {
			c := asks(sharedPolicy(t, "p", budget), subject, 1)
			c.Guest = true
			return c
		}
		if r := take(s, guest("known"))[0]; !r.Allowed {
			t.Errorf("%s: %+v", name, r)
		}
		fill[name]()
		untilTight(t, cells)
		for range 2 { // the first attempt hasn't created one
			if r := take(s, guest("invented"))[0]; !errors.Is(r.Err, counter.ErrNoRoom) || r.Allowed {
				t.Errorf("%s: a guest with a new name: %+v", name, r)
			}
		}
		if r := take(s, guest("known"))[0]; !r.Allowed || r.Remaining != 1000-50-2 {
			t.Errorf("%s: a guest with a stake: %+v", name, r)
		}
		if r := take(s, asks(sharedPolicy(t, "p", budget), "client", 1))[0]; !r.Allowed {
			t.Errorf("%s: a client that is no guest: %+v", name, r)
		}
		s.stakes.close()
	}
}

// TestGuestsOfOtherRegions checks that guests of other regions can't create counters at a home that is nearly full
// either. Other clients of those regions can.
func TestGuestsOfOtherRegions(t *testing.T) {
	redis, store := openRedis(t)
	sites := world(t, time.Now, "us", "eu")
	us, eu := sites[0], sites[1]
	us.link.Serve(weir.NewLimiter(store, nil, weir.Options{}), store)
	p := policyOf(t, "p", counter.PerHour(10), true)
	guest := func(subject string) counter.Charge {
		c := asks(p, subject, 1)
		c.Guest = true
		return c
	}
	if r := take(eu, guest("known"))[0]; !r.Allowed {
		t.Errorf("%+v", r)
	}
	tighten(t, redis)
	untilTight(t, RedisCells(store))
	for _, on := range []counter.FailureMode{counter.FailRefuse, counter.FailLocal} {
		p = p.With(func(d *counter.Definition) { d.OnPartition = on })
		if r := take(eu, guest("invented"))[0]; r.Allowed || !errors.Is(r.Err, counter.ErrNoRoom) || errors.Is(r.Err, counter.ErrPartition) {
			t.Errorf("a guest with a new name, on_partition %v: %+v", on, r)
		}
	}
	both := take(eu, asks(p, "client", 1), guest("invented"))
	if !both[0].Allowed || both[0].Err != nil || !errors.Is(both[1].Err, counter.ErrNoRoom) {
		t.Errorf("beside a limit of a client: %+v", both)
	}
	for _, c := range []counter.Charge{guest("known"), asks(p, "client", 1)} {
		if r := take(eu, c)[0]; !r.Allowed {
			t.Errorf("%s: %+v", c.Subject, r)
		}
	}
}

// TestShadowLimitsRefuseNobody checks that a shadow limit doesn't refuse a request, wherever it is counted, and that
// the request's other limits are charged.
func TestShadowLimitsRefuseNobody(t *testing.T) {
	for _, travels := range []bool{false, true} {
		inTime(t, func(t *testing.T, us, eu, ap *site) {
			ghost, own, p, far := sharedPolicy(t, "ghost", budget), policyOf(t, "own", counter.PerHour(10), false), sharedPolicy(t, "p", budget), policyOf(t, "far", counter.PerHour(10), true)
			ghost = ghost.With(func(d *counter.Definition) { d.Shadow, d.Travels = true, travels })
			for i, p := range []**counter.Policy{&own, &p, &far} {
				*p = (*p).With(func(d *counter.Definition) { d.ID = uint64(i + 1) })
			}
			here := us
			if travels {
				here = eu
			}
			take(here, asks(ghost, "a", 900))
			left := map[string]int64{}
			for i := range int64(3) {
				for j, r := range take(here, asks(ghost, "a", 200), asks(own, "a", 1), asks(p, "a", 1), asks(far, "a", 1)) {
					name := []string{"ghost", "own", "p", "far"}[j]
					if i > 0 && j > 0 && r.Remaining != left[name]-1 {
						t.Errorf("ghost travels %v: %s was left at %d, and is at %d", travels, name, left[name], r.Remaining)
					}
					if left[name] = r.Remaining; r.Allowed != (j > 0) {
						t.Errorf("ghost travels %v: %s: %+v", travels, name, r)
					}
				}
			}
		})
	}
}

// noReset is a store whose Reset fails.
type noReset struct{ counter.Store }

func (noReset) Reset(context.Context, []counter.Counter) error {
	return errors.New("the own store is lost")
}

// TestResetsOverRegions checks that a reset in any region resets the counters of all regions. The error names the
// regions that can't be reached, and the others are reset. Forgotten regions aren't waited for.
func TestResetsOverRegions(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		own, window := policyOf(t, "o", budget, false), sharedPolicy(t, "w", budget)
		window = window.With(func(d *counter.Definition) { d.ID = 1 })
		both := []counter.Counter{asks(own, "a", 1).Counter, asks(window, "a", 1).Counter}
		all := []*site{us, eu, ap}
		spend := func() {
			for _, s := range all {
				if r := take(s, asks(own, "a", 5), asks(window, "a", 5)); !r[0].Allowed || !r[1].Allowed {
					t.Fatalf("%+v", r)
				}
			}
		}
		used := func(s *site) (n int64) {
			named := counter.Counter{Policy: window, Subject: secret.name(window.ID, []byte("a"))}
			_ = s.stakes.cells.Update(t.Context(), []string{keyOf(&named)}, func(values [][]byte, _ int64) []Cell {
				n = stake.Decode(values[0]).Level
				return []Cell{{Value: values[0]}}
			})
			return n
		}
		reset := func(s *site, but *site, wrong ...string) {
			t.Helper()
			spend()
			err := s.Reset(t.Context(), both)
			if (err != nil) != (len(wrong) > 0) {
				t.Errorf("%s: %v", s.link.name, err)
			}
			for _, text := range wrong {
				if err != nil && !strings.Contains(err.Error(), text) {
					t.Errorf("%s: %v, want %q", s.link.name, err, text)
				}
			}
			peek := asks(own, "a", 1)
			peek.Peek = true
			if n := take(s, peek)[0].Remaining; n != 1000 && s.Store.own == counter.Store(s.own) {
				t.Errorf("%s has %d of its own limit", s.link.name, n)
			}
			for _, o := range all {
				if (used(o) > 0) != (o == but) {
					t.Errorf("reset in %s: in %s %d are used", s.link.name, o.link.name, used(o))
				}
			}
		}
		for _, s := range all {
			reset(s, nil)
		}
		spend()
		if err := us.link.SetState(t.Context(), "ap", Drained, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * beatEvery)
		if err := eu.Reset(t.Context(), both); err != nil || used(ap) != 0 {
			t.Errorf("%v; %d are used in ap, which is drained", err, used(ap))
		}
		if err := us.link.SetState(t.Context(), "ap", "", false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * beatEvery)
		ap.cut.Store(true)
		reset(eu, ap, "what was used in region ap may stay used: ", "cut off")
		time.Sleep(2 * silentAfter)
		reset(eu, ap, "what was used in region ap may stay used: region ap is silent")
		eu.Store.own = noReset{eu.own}
		reset(eu, ap, "the own store is lost", "region ap")
		eu.Store.own = eu.own
		if err := us.link.SetState(t.Context(), "ap", Forgotten, true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * beatEvery)
		reset(eu, ap)
		ap.cut.Store(false)
		all = all[:2]
		for range 2 { // the first time, ap learns that it was forgotten; the second time it is drained, and has no stakes
			time.Sleep(3 * beatEvery)
			spend()
			if err := ap.Reset(t.Context(), both); err != nil || used(us) != 0 || used(eu) != 0 {
				t.Errorf("reset in ap, which is %q: %v; %d and %d are used", ap.link.Here().State, err, used(us), used(eu))
			}
			if err := us.link.SetState(t.Context(), "ap", Drained, false); err != nil {
				t.Fatal(err)
			}
		}
	})
}
