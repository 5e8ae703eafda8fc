package lease

import (
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
	"github.com/weirhq/weir/storetest"
)

// claiming is a counter of which a node that is alone holds four tokens, during the lease.
func claiming(t *testing.T) (x *borrower, e *entry, now int64) {
	p := storetest.Policy(t, "p", counter.PerMinute(600))
	c := &counter.Charge{Counter: counter.Counter{Policy: p, Subject: []byte("s")}, N: 1}
	now = int64(time.Hour)
	x = newCounter(1, c, now)
	at := storeTime(0, now)
	x.state, x.base = p.AtLevel(500_000_000, at), at
	x.held, x.interval, x.leaseEnd = 4, at, now+int64(time.Second)
	return x, &entry{charge: c, result: new(counter.Result), counter: x}, now
}

// Tokens that an undecided request has spent may come back, so a claim counts them as held.
func TestClaimCountsTheUndecided(t *testing.T) {
	for _, admitted := range []bool{true, false} {
		x, e, now := claiming(t)
		x.decide(now, e)
		if c := x.claim(); e.verdict != allowed || c.Held != 4 || e.charge.Policy.Level(c.State, c.State.Time) != 496_000_000 {
			t.Fatalf("one of four is spent, undecided: %+v", c)
		}
		want := int64(4)
		if admitted {
			e.decided()
			want = 3
		} else if late := x.unspend(now, e); late.N != 0 || x.held != 4 {
			t.Fatalf("the token came back: %+v, %d held", late, x.held)
		}
		if c := x.claim(); c.Held != want || x.undecided.Load() != 0 {
			t.Errorf("admitted %v: %+v, want %d held", admitted, c, want)
		}
	}
}

// While tokens may be on their way back to the store, the node makes no claim, because the claim wouldn't count them.
func TestNoClaimBesideStrays(t *testing.T) {
	x, e, now := claiming(t)
	if back := x.empty(now); back.N != 4 || back.Base == 0 {
		t.Fatalf("what goes back: %+v", back)
	}
	answer := func(at int64) ledger.Claim {
		a := ledger.Account{State: e.charge.Policy.AtLevel(400_000_000, storeTime(0, at)), Node: 1, Since: 1}
		g := &ledger.Grant{Result: counter.Result{Allowed: true}, Account: a, Now: storeTime(0, at)}
		x.learn(e, g, true, at, at)
		return x.claim()
	}
	if c := answer(now + int64(500*time.Millisecond)); c.Base != 0 {
		t.Errorf("before the lease has ended: %+v", c)
	}
	if c := answer(now + int64(1100*time.Millisecond)); c.Base == 0 {
		t.Errorf("afterwards: %+v", c)
	}
}

// Of two calls at the same time, one is lent the last tokens and the other is refused. The node can spend them.
func TestARefusalBesideALease(t *testing.T) {
	x, e, now := claiming(t)
	a := ledger.Account{State: e.charge.Policy.AtLevel(0, storeTime(0, now)), Lent: [2]int64{4, 0}, Since: 1}
	x.learn(e, &ledger.Grant{Account: a, Now: storeTime(0, now)}, false, now, now)
	if e.verdict != refused || e.result.RetryAfter > 100*time.Millisecond {
		t.Errorf("the one that was refused: %+v", *e.result)
	}
	next := &entry{charge: e.charge, result: new(counter.Result), counter: x}
	if x.refusesUnlocked(now, next) {
		t.Fatalf("the next one: %+v", *next.result)
	}
	if x.decide(now, next); next.verdict != allowed {
		t.Errorf("the next one: %+v", *next.result)
	}
}

// The node trusts an answer of the store only for the same policy, for a moment, and not while the store is lost.
func TestRecall(t *testing.T) {
	for name, c := range map[string]struct {
		change func(x *borrower, e *entry, now int64)
		want   bool
	}{
		"a moment ago": {func(*borrower, *entry, int64) {}, true},
		"too long ago": {func(x *borrower, _ *entry, now int64) { x.fresh = now }, false},
		"in an outage": {func(x *borrower, _ *entry, _ int64) { x.outage = true }, false},
		"other numbers": {func(x *borrower, e *entry, _ int64) {
			x.policy.Store(storetest.Policy(t, "p", counter.PerMinute(1000)))
		}, false},
		"more than fits": {func(_ *borrower, e *entry, _ int64) { e.charge.N = 501 }, false},
	} {
		x, e, now := claiming(t)
		x.fresh = now + 1
		c.change(x, e, now)
		if got := x.recall(now, e); got != c.want || e.result.Allowed != c.want {
			t.Errorf("%s: %v, %+v", name, got, e.result)
		}
	}
}

// Before asking the store, the node spends held tokens, but leaves something to ask for. It spends none that may have to be
// given back, and none for a cost that can never fit.
func TestPrepareSpendsWhatIsHeld(t *testing.T) {
	for name, c := range map[string]struct {
		n          int64
		returnable bool
		asked      int64
	}{
		"more than is held":  {10, false, 6},
		"less than is held":  {3, false, 1},
		"one":                {1, false, 1},
		"may be given back":  {10, true, 10},
		"all that ever fits": {600, false, 596},
		"more than ever":     {601, false, 601},
	} {
		x, e, now := claiming(t)
		e.charge.N, e.charge.Returnable = c.n, c.returnable
		q := ledger.Ask{Charge: *e.charge}
		if x.prepare(now, e, &q); q.N != c.asked || x.held != 4-(c.n-c.asked) || e.spent != c.n-c.asked {
			t.Errorf("%s: asks for %d, want %d; %d held, %d spent", name, q.N, c.asked, x.held, e.spent)
		}
	}
}
