package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/lease"
	"github.com/weirhq/weir/storetest"
)

// TestAFullRedisGoesOn checks that, without memory, existing counters work as usual and only charges that need a new counter
// fail. Nodes can start, and everything is normal again once there is memory.
func TestAFullRedisGoesOn(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	url := "redis://" + r.Addr
	var log lines
	began := time.Now()
	s := open(t, Options{URL: url, Logger: log.logger()})
	c10 := func(p *counter.Policy, subject string) counter.Charge {
		c := charge1(p, subject)
		c.N = 10
		return c
	}
	policies := map[counter.Algorithm]*counter.Policy{}
	for _, a := range storetest.Algorithms {
		policies[a] = policy(t, fmt.Sprint("p", a), a, 10, year/2)
		mustTake(t, s, c10(policies[a], "blocked"))
		mustTake(t, s, charge1(policies[a], "known"))
	}
	do(t, r, "CONFIG", "SET", "maxmemory", "1")
	for a, p := range policies {
		for range 3 {
			if res := take(t.Context(), s, charge1(p, "blocked"))[0]; res.Err != nil || res.Allowed || res.RetryAfter <= 0 {
				t.Errorf("%s: blocked: %+v", a, res)
			}
			res := take(t.Context(), s, charge1(p, "known"), charge1(p, "new"))
			if res[0].Err != nil || !res[0].Allowed {
				t.Errorf("%s: known: %+v", a, res[0])
			}
			if !errors.Is(res[1].Err, ErrUnavailable) {
				t.Errorf("%s: new: %+v", a, res[1])
			}
			if res := take(t.Context(), s, peek1(p, "new"))[0]; res.Err != nil || !res.Allowed || res.Remaining != 10 {
				t.Errorf("%s: peek: %+v", a, res)
			}
		}
		if got := used(t, s, p, "known"); got != 4 {
			t.Errorf("%s: known: %d used, want 4", a, got)
		}
		res := take(t.Context(), s, charge1(p, "known"))[0]
		back := []counter.Return{{Counter: charge1(p, "known").Counter, N: 1, Slot: res.Slot}}
		if err := s.GiveBack(t.Context(), counter.Once{byte(a), 1}, time.Hour, back); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: given back without a mark: %v", a, err)
		}
		if err := s.GiveBack(t.Context(), counter.Once{}, 0, back); err != nil || used(t, s, p, "known") != 4 {
			t.Errorf("%s: given back: %v, %d used", a, err, used(t, s, p, "known"))
		}
		if got := do(t, r, "EXISTS", keyOf(s, p, "new")); got != int64(0) {
			t.Errorf("%s: a new counter was written", a)
		}
	}
	if h := s.Health(); !h.Up {
		t.Errorf("held against Redis: %+v", h)
	}
	log.wantOneAMinute(t, "short of memory", began)

	// A node that starts now, and one that had lost Redis before.
	p := policies[counter.TokenBucket]
	if got := used(t, open(t, Options{URL: url}), p, "known"); got != 4 {
		t.Errorf("another node sees %d used", got)
	}
	sh := s.joiners[0].shard.Load()
	sh.trip(os.ErrDeadlineExceeded)
	s.lose(sh)
	until(t, func(context.Context) error { return take(t.Context(), s, peek1(p, "known"))[0].Err })

	do(t, r, "CONFIG", "SET", "maxmemory", "0")
	if !mustTake(t, s, charge1(p, "new")) || used(t, s, p, "new") != 1 {
		t.Error("memory is back, and nothing is counted")
	}
	lasting(t, r)
}

// TestAFullRedisLocksNobodyKnownOut checks that a rule that fails closed refuses only new clients.
func TestAFullRedisLocksNobodyKnownOut(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	rules, err := weir.Compile(weir.Rules{Version: 1, Rules: []weir.Rule{{
		ID: "r", Limits: []counter.Limit{{Count: 5, Window: time.Hour}}, OnStoreFailure: counter.FailRefuse,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	l := weir.NewLimiter(s, rules, weir.Options{})
	check := func(key string) weir.Decision {
		d, _ := l.Check(t.Context(), &weir.Request{APIKey: key, Method: "GET", Path: "/"})
		return d
	}
	check("known")
	do(t, r, "CONFIG", "SET", "maxmemory", "1")
	for i := range 20 {
		if d := check(fmt.Sprint("invented", i)); d.Allowed {
			t.Fatalf("a new client: %+v", d)
		}
	}
	for i := range 6 {
		if d := check("known"); d.Allowed != (i < 4) || d.Degraded {
			t.Errorf("request %d of a known client: %+v", i+2, d)
		}
	}
}

// TestGuestsLeaveRoomForOthers checks that made-up keys get counters of their own only while there is plenty of memory.
// Otherwise they are counted by their address, while known and verified clients are counted as usual.
func TestGuestsLeaveRoomForOthers(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	for _, a := range storetest.Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			do(t, r, "CONFIG", "SET", "maxmemory", "0")
			s.weigh()
			var delay time.Duration
			if a == counter.LeakyQueue {
				delay = year / 2
			}
			rules, err := weir.Compile(weir.Rules{Version: 1, Rules: []weir.Rule{
				{ID: "r", Algorithm: a, MaxDelay: delay, Limits: []counter.Limit{{Count: 5, Window: year / 2}}},
				{ID: "ip", By: []string{"ip"}, Limits: []counter.Limit{{Count: 1000, Window: year / 2}}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			l := weir.NewLimiter(lease.New(s, lease.Options{}), rules, weir.Options{})
			check := func(key, ip string, verified bool) bool {
				d, err := l.Check(t.Context(), &weir.Request{APIKey: key, KeyVerified: verified, Method: "GET", Path: "/", IP: netip.MustParseAddr(ip)})
				if err != nil {
					t.Error(err)
				}
				return d.Allowed
			}
			known := fmt.Sprint("known", a)
			check(known, "192.0.2.1", false)
			used, err := r.Memory(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			do(t, r, "CONFIG", "SET", "maxmemory", fmt.Sprint(used*5/4))
			s.weigh()
			before := do(t, r, "DBSIZE").(int64)
			admitted := 0
			for i := range 40 {
				if check(fmt.Sprint("invented", a, i), "192.0.2.1", false) {
					admitted++
				}
			}
			if admitted != 5 {
				t.Errorf("%d requests with made-up keys were admitted, want what one client may", admitted)
			}
			if got := do(t, r, "DBSIZE").(int64); got > before+1 {
				t.Errorf("made-up keys took %d keys in Redis", got-before)
			}
			if !check("other", "192.0.2.2", false) {
				t.Error("somebody at another address is refused")
			}
			for i := range 6 {
				if got := check(known, "192.0.2.1", false); got != (i < 4) {
					t.Errorf("request %d of a known client: %v", i+2, got)
				}
				if got := check(fmt.Sprint("verified", a), "192.0.2.1", true); got != (i < 5) {
					t.Errorf("request %d of a verified client: %v", i+1, got)
				}
			}
			if !s.Health().Up {
				t.Error("held against Redis")
			}
			do(t, r, "CONFIG", "SET", "maxmemory", "0")
			s.weigh()
			if !check(fmt.Sprint("late", a), "192.0.2.1", false) {
				t.Error("memory is back, and a new client is refused")
			}
		})
	}
}
