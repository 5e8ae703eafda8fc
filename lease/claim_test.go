package lease

import (
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/ledger"
	"github.com/weirhq/weir/storetest"
)

// claiming is a counter of a node that is alone with it and holds four tokens, at a moment within the lease.
func claiming(t *testing.T) (x *counter, e *entry, now int64) {
	p := storetest.Policy(t, "p", weir.PerMinute(600))
	c := &weir.Charge{Counter: weir.Counter{Policy: p, Subject: []byte("s")}, N: 1}
	now = int64(time.Hour)
	x = newCounter(1, c, now)
	at := storeTime(0, now)
	x.state, x.base = p.AtLevel(500_000_000, at), at
	x.held, x.interval, x.leaseEnd = 4, at, now+int64(time.Second)
	return x, &entry{charge: c, result: new(weir.Result), counter: x}, now
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

// While tokens may be on their way back to the store nothing is claimed: the claim wouldn't count them.
func TestNoClaimBesideStrays(t *testing.T) {
	x, e, now := claiming(t)
	if back := x.empty(now); back.N != 4 || back.Base == 0 {
		t.Fatalf("what goes back: %+v", back)
	}
	answer := func(at int64) ledger.Claim {
		a := ledger.Account{State: e.charge.Policy.AtLevel(400_000_000, storeTime(0, at)), Node: 1, Since: 1}
		g := &ledger.Grant{Result: weir.Result{Allowed: true}, Account: a, Now: storeTime(0, at)}
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

// Of two calls under way at once, one was lent the last tokens, and the other refused. The node can spend them.
func TestARefusalBesideALease(t *testing.T) {
	x, e, now := claiming(t)
	a := ledger.Account{State: e.charge.Policy.AtLevel(0, storeTime(0, now)), Lent: [2]int64{4, 0}, Since: 1}
	x.learn(e, &ledger.Grant{Account: a, Now: storeTime(0, now)}, false, now, now)
	if e.verdict != refused || e.result.RetryAfter > 100*time.Millisecond {
		t.Errorf("the one that was refused: %+v", *e.result)
	}
	next := &entry{charge: e.charge, result: new(weir.Result), counter: x}
	if x.refusesUnlocked(now, next) {
		t.Fatalf("the next one: %+v", *next.result)
	}
	if x.decide(now, next); next.verdict != allowed {
		t.Errorf("the next one: %+v", *next.result)
	}
}
