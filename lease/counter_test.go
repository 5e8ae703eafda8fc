package lease

import (
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
	"github.com/weirhq/weir/storetest"
)

func newFor(t *testing.T, l counter.Limit) *borrower {
	c := charge(storetest.Policy(t, "p", l), "s", 1)
	return newCounter(1, &c, 0)
}

// TestWant checks that a node wants as many tokens as it was asked for in the last interval, part of which lies in the previous
// period.
func TestWant(t *testing.T) {
	quick := counter.Limit{Count: 1_000_000, Window: time.Second}                               // refills 45,000 in an interval of 45 ms
	slow := counter.Limit{Count: 3600, Window: time.Hour}                                       // one a second, in intervals of 5 s
	fixed := counter.Limit{Algorithm: counter.FixedWindow, Count: 3_600_000, Window: time.Hour} // 45 in an interval
	sliding := fixed
	sliding.Algorithm = counter.SlidingCounter
	for _, c := range []struct {
		limit            counter.Limit
		part             float64 // of the period that has passed
		before, arrivals int64
		want             int64
	}{
		{quick, 0, 100, 0, 100},
		{quick, 0.5, 100, 10, 60},
		{quick, 0.75, 100, 10, 35},
		{quick, 0.5, 2, 0, 0}, // one token isn't worth it
		{quick, 0.5, 2, 1, 2},
		{quick, 0, 1_000_000, 0, 45_000},
		{slow, 0.5, 2, 0, 1}, // here it is
		{slow, 0.5, 2, 1, 3},
		{slow, 0, 100, 0, 5},
		{fixed, 0.5, 60, 5, 35},
		{fixed, 0, 100, 0, 45},
		{sliding, 0, 100, 0, 45},
	} {
		x := newFor(t, c.limit)
		length := float64(ledger.Interval(x.policy.Load()))
		x.before, x.arrivals = c.before, c.arrivals
		if got := x.want(int64((1000 + c.part) * length)); got != c.want {
			t.Errorf("%s, %v of a period: after %d and %d it wants %d, want %d", c.limit, c.part, c.before, c.arrivals, got, c.want)
		}
	}
}

// TestArrivals checks that tokens requested in one period count for the previous period once the next one begins, and no longer
// after that.
func TestArrivals(t *testing.T) {
	x := newFor(t, counter.Limit{Count: 1_000_000, Window: time.Second})
	length := int64(ledger.Interval(x.policy.Load()))
	for i, c := range []struct{ at, before, arrivals int64 }{
		{1000 * length, 0, 3}, {1001*length - 1, 0, 6}, {1001 * length, 6, 3}, {1003 * length, 0, 3},
	} {
		if x.arrive(c.at, 3); x.before != c.before || x.arrivals != c.arrivals {
			t.Errorf("%d: %d before, %d now; want %d, %d", i, x.before, x.arrivals, c.before, c.arrivals)
		}
	}
}

// TestAbove checks that a bucket's percentage is computed from its level now, not from an earlier one.
func TestAbove(t *testing.T) {
	x := newFor(t, counter.Limit{Count: 3600, Window: time.Hour, Burst: 200})
	const at = 1_000_000_000
	x.state = x.policy.Load().AtLevel(149_999_999, at)
	x.clock = at
	for now, want := range map[int64]bool{0: false, int64(time.Millisecond): true} {
		if got := x.above(now, 75); got != want {
			t.Errorf("after %v: %v", time.Duration(now), got)
		}
	}
}

// TestClaims checks that both kinds of buckets have an account to claim, and windows have none. Giving back nothing doesn't
// change it.
func TestClaims(t *testing.T) {
	for a, want := range map[counter.Algorithm]bool{counter.TokenBucket: true, counter.LeakyBucket: true, counter.FixedWindow: false, counter.SlidingCounter: false} {
		x := newFor(t, counter.Limit{Algorithm: a, Count: 3600, Window: time.Hour})
		x.base = 7
		if got := x.claim().Base != 0; got != want {
			t.Errorf("%s: %v", a, got)
		}
		if back := x.empty(0); back.N != 0 || x.base != 7 {
			t.Errorf("%s: nothing is held, and %+v goes back, base %d", a, back, x.base)
		}
	}
}

// TestRetryTimesOfRememberedRefusals checks that, while a counter keeps refusing, clients are told to wait for the next token
// and the pause, and no longer.
func TestRetryTimesOfRememberedRefusals(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, _ *far) {
		p := storetest.Policy(t, "p", counter.Limit{Count: 60, Window: time.Minute})
		for range 70 {
			take(s, charge(p, "s", 1))
		}
		refusals := 0
		for range 500 {
			if r := take(s, charge(p, "s", 1))[0]; !r.Allowed {
				refusals++
				if r.RetryAfter <= 0 || r.RetryAfter > time.Second+time.Duration(maxPause) {
					t.Fatalf("told to come back in %s, and a token refills each second", r.RetryAfter)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		if refusals < 400 {
			t.Errorf("%d refusals: the test shows nothing", refusals)
		}
	})
}
