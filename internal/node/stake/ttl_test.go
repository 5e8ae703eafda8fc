package stake

import (
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

func policy(t *testing.T, l counter.Limit) *counter.Policy {
	t.Helper()
	p, err := counter.NewPolicy("p", l)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const second = 1_000_000 // µs

// start is the start of a window of a second, of a minute and of a day.
var start = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// lendAll makes a region that owns most of a limit lend all of that to another region.
func lendAll(t *testing.T, p *counter.Policy, s Share, now int64) (lender, borrower *Stake) {
	t.Helper()
	lender, borrower = &Stake{}, &Stake{}
	ask := borrower.Ask(p, Share{}, now, "us", s.Own)
	borrower.Hear(p, Share{}, now, "us", lender.Hear(p, s, now, "eu", ask))
	if n := borrower.Held["us"].out(); n != s.Own {
		t.Fatalf("%d of %d were lent", n, s.Own)
	}
	return lender, borrower
}

// TestKeptAsLongAsItMatters checks that when a stake's TTL ends, forgetting the stake is the same as keeping it.
func TestKeptAsLongAsItMatters(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit counter.Limit
		at    int64 // when everything is lent
		then  int64 // the clock's time at the last change
	}{
		{"a bucket's loan comes back empty when the term is over, and refills then", counter.Limit{Count: 5, Window: time.Second, Burst: 100}, start, start},
		{"a sliding counter weighs a window to the end of the next", counter.Limit{Algorithm: counter.SlidingCounter, Count: 100, Window: time.Minute}, start, start},
		{"a fixed window has begun, and the clock steps back before it", counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: time.Minute}, start, start - second/2},
		{"a sliding counter's window, likewise", counter.Limit{Algorithm: counter.SlidingCounter, Count: 100, Window: time.Minute}, start, start - second/2},
		{"a day, likewise", counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Day}}, start, start - second/2},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, s := policy(t, c.limit), Share{Own: 90, Rate: 900}
			k, _ := lendAll(t, p, s, c.at)
			k.settle(p, s, c.then)
			forgotten := c.then + k.TTL(p, s, c.then).Microseconds()
			if k.settle(p, s, forgotten); k.left(p, s, forgotten) < s.Own*scale(p) {
				t.Errorf("after %v it is forgotten, and has %d of %d", time.Duration(forgotten-c.then)*time.Microsecond, k.left(p, s, forgotten), s.Own*scale(p))
			}
		})
	}
}

// TestLentTokensCountAsMissing checks that tokens that a region has lent count as missing, even if it has borrowed
// others.
func TestLentTokensCountAsMissing(t *testing.T) {
	p, s := policy(t, counter.Limit{Count: 5, Window: time.Second, Burst: 100}), Share{Own: 20, Rate: 200}
	k := &Stake{Time: start, Level: 60 * second, Lent: map[string]*Loan{"eu": {Given: 20, Until: start + 5*second}}, Held: map[string]*Loan{"us": {Given: 60, Until: start + 8*second}}}
	at := start + k.TTL(p, s, start).Microseconds()
	if k.settle(p, s, at); k.Level < s.Own*scale(p) {
		t.Errorf("forgotten after %v with %d", k.TTL(p, s, start), k.Level)
	}
}

// TestRetryAfter checks the retry times of refusals: the end of the window or, for a sliding counter, when the previous
// window weighs little enough.
func TestRetryAfter(t *testing.T) {
	s := Share{Own: 90}
	fixed := policy(t, counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: time.Minute})
	sliding := policy(t, counter.Limit{Algorithm: counter.SlidingCounter, Count: 100, Window: time.Minute})
	for _, c := range []struct {
		p     *counter.Policy
		k     Stake
		now   int64
		n     int64
		after time.Duration
	}{
		{fixed, Stake{Time: start, Level: 90}, start + 20*second, 1, 40 * time.Second},
		{fixed, Stake{Time: start, Level: 90}, start - second, 1, 61 * time.Second},
		{fixed, Stake{Time: start, Level: 90}, start + 20*second, 101, counter.Never},
		{sliding, Stake{Time: start, Prev: 90}, start + 15*second, 45, 15 * time.Second},
		{sliding, Stake{Time: start, Level: 90}, start + 15*second, 45, 45*time.Second + 27*time.Second}, // if all other regions are equally full
	} {
		k := c.k
		if r := k.Report(c.p, s, c.now, c.n, false); r.RetryAfter < c.after-time.Millisecond || r.RetryAfter > c.after+time.Second {
			t.Errorf("%v at %v: %v, want %v", c.p.Limit, time.Duration(c.now-start)*time.Microsecond, r.RetryAfter, c.after)
		}
	}
}

// TestGiveBackMintsNothing checks that tokens that a window has lent stay lent, whatever is given back.
func TestGiveBackMintsNothing(t *testing.T) {
	p, s := policy(t, counter.Limit{Algorithm: counter.FixedWindow, Count: 100, Window: time.Minute}), Share{Own: 90}
	k, borrower := lendAll(t, p, s, start)
	k.GiveBack(p, s, start, 50, 0)
	if left := k.left(p, s, start); left != 0 {
		t.Errorf("a lender of all has %d", left)
	}
	borrower.Take(p, Share{}, start, 30)
	borrower.GiveBack(p, Share{}, start, 30, start)
	if left := borrower.left(p, Share{}, start); left != 90 {
		t.Errorf("a borrower of 90 has %d", left)
	}
}
