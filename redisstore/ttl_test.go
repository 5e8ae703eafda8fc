package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/storetest"
)

func keyOf(s *Store, p *counter.Policy, subject string) string {
	key, _ := s.names.Load().subject(&counter.Counter{Policy: p, Subject: []byte(subject)})
	return key
}

func pttl(t *testing.T, r *redistest.Server, key string) time.Duration {
	t.Helper()
	return time.Duration(do(t, r, "PTTL", key).(int64)) * time.Millisecond
}

// TestCountersLiveAsLongAsTheyMatter checks that counters live long enough, and not much longer.
func TestCountersLiveAsLongAsTheyMatter(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	for _, a := range storetest.Algorithms {
		for _, window := range []time.Duration{time.Second, time.Minute, 24 * time.Hour, year} {
			p := policy(t, fmt.Sprint("p", a, window), a, 10, window)
			subject := fmt.Sprint("s", a, window) // a key of its own
			key := keyOf(s, p, subject)
			for _, n := range []int64{1, 5, 4, 1} { // the last is refused
				c := charge1(p, subject)
				c.N = n
				res := take(t.Context(), s, c)[0]
				if res.Err != nil {
					t.Fatal(res.Err)
				}
				// Some time passes between the reply and reading the TTL.
				least, most := res.ResetAfter-time.Second, p.Memory()*8/3+17*time.Second
				if a == counter.FixedWindow && window == time.Second {
					least = 0 // it may have ended since
				}
				if ttl := pttl(t, r, key); ttl < least || ttl > most {
					t.Errorf("%s per %v, after %d: lives for %v, want from %v to %v", a, window, n, ttl, least, most)
				}
			}
		}
	}
	lasting(t, r)
}

// TestJoinedActsLeaveATTL checks that an act doesn't rely on a TTL that an earlier act of the same call saw, if the key was
// deleted in between.
func TestJoinedActsLeaveATTL(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	for _, a := range storetest.Algorithms {
		p := policy(t, fmt.Sprint("p", a), a, 10, time.Hour)
		key := keyOf(s, p, "s")
		one := func(k kind) *act {
			return &act{kind: k, charges: []charge{{policy: p, key: key, n: 1}}}
		}
		back := func(of *act) *act {
			b := one(kindGiveBack)
			b.charges[0].slot = of.now
			return b
		}
		send := func(acts ...*act) {
			t.Helper()
			if err := s.call(t.Context(), &s.joiners[0], acts); err != nil {
				t.Fatal(err)
			}
			if do(t, r, "EXISTS", key).(int64) == 1 && pttl(t, r, key) < time.Minute {
				t.Errorf("%s: after %d acts the key lives for %v", a, len(acts), pttl(t, r, key))
			}
		}
		first := one(kindTake)
		send(first, one(kindReset), one(kindTake))
		send(one(kindTake), one(kindReset), one(kindReset), one(kindTake), one(kindTake))
		again := one(kindTake)
		send(one(kindReset), again)
		send(back(again), one(kindTake), one(kindReset), one(kindTake))
		if do(t, r, "EXISTS", key).(int64) != 1 {
			t.Errorf("%s: the last take left nothing", a)
		}
	}
	lasting(t, r)
}

// TestAHashForgetsFieldsThatNoLongerMatter checks that rules whose window changes again and again leave no old fields.
func TestAHashForgetsFieldsThatNoLongerMatter(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	now := storetest.Start
	s := open(t, Options{URL: "redis://" + r.Addr, Now: func() time.Time { return now }})
	for _, a := range []counter.Algorithm{counter.FixedWindow, counter.SlidingCounter} {
		subject := fmt.Sprint("s", a)
		long := policy(t, "long", a, 1000, 240*time.Hour)
		key := keyOf(s, long, subject)
		most := int64(0)
		for i := range 200 {
			p := policy(t, "p", a, 10, time.Second+time.Duration(i)*time.Millisecond)
			mustTake(t, s, charge1(p, subject), charge1(long, subject))
			now = now.Add(5 * time.Second)
			most = max(most, do(t, r, "HLEN", key).(int64))
		}
		if most > 17 {
			t.Errorf("%s: %d fields, two of which mattered", a, most)
		}
		if n := used(t, s, long, subject); n != 200 {
			t.Errorf("%s: the long window counted %d of 200: a field that mattered was dropped", a, n)
		}
	}
	lasting(t, r)
}

// TestExtremeNumbersLiveOn checks a leaky bucket that becomes slow while it is full. It takes centuries to drain, and Redis
// accepts no such TTL.
func TestExtremeNumbersLiveOn(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	now := storetest.Start
	s := open(t, Options{URL: "redis://" + r.Addr, Now: func() time.Time { return now }})
	fast := storetest.Policy(t, "p", counter.Limit{Algorithm: counter.LeakyBucket, Count: counter.MaxTokens, Window: time.Second})
	slow := storetest.Policy(t, "p", counter.Limit{Algorithm: counter.LeakyBucket, Count: 1, Window: year})
	c := charge1(fast, "s")
	c.N = counter.MaxTokens
	if !mustTake(t, s, c) {
		t.Fatal("refused")
	}
	now = now.Add(-time.Minute) // so that a refusal stores something
	if mustTake(t, s, charge1(slow, "s")) {
		t.Error("admitted into a bucket that is more than full")
	}
	lasting(t, r)
}
