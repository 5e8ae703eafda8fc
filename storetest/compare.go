package storetest

import (
	"context"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
	"pgregory.net/rapid"
)

func compare(t *rapid.T, h *harness, m *Model, charges []counter.Charge, slack time.Duration) (taken []counter.Return) {
	want := make([]counter.Result, len(charges))
	before := map[*kept]ledger.Account{}
	for _, k := range m.counters {
		before[k] = k.account
	}
	m.Take(context.Background(), charges, want)
	got := h.charge(charges...)
	differ := admits(charges, got) != admits(charges, want)
	for i, c := range charges {
		if got[i] != want[i] && !near(c.Policy, got[i], want[i], slack, differ) {
			t.Fatalf("at %d, charge %d of %d (%s, %s, %q, n %d, hold %+v): got %+v, want %+v",
				h.now.UnixMicro(), i+1, len(charges), c.Policy.Limit, c.Policy.Limit.Algorithm, c.Subject, c.N, c.Hold, got[i], want[i])
		}
		differ = differ || got[i].Allowed != want[i].Allowed
		if got[i].Allowed && !c.Peek {
			taken = append(taken, counter.Return{Counter: c.Counter, N: c.N, Slot: got[i].Slot, Hold: c.Hold})
		}
	}
	if differ {
		m.follow(before, charges, got)
	}
	return taken
}

// admits reports whether no limit refuses the request.
func admits(charges []counter.Charge, results []counter.Result) bool {
	for i, r := range results {
		if !r.Allowed && !charges[i].Policy.Shadow {
			return false
		}
	}
	return true
}

// near reports whether a bucket's result is close enough to the model's. A store that lends may have more tokens than the model
// by the refill of slack, and fewer by the refill of two intervals and slack, since it counts spent tokens as lent for so long.
// If one of the two admits a request that the other refuses, only the time until both admit it can be compared.
func near(p *counter.Policy, got, want counter.Result, slack time.Duration, differ bool) bool {
	late := 2*ledger.Interval(p) + slack
	after := func(got, want time.Duration) bool {
		return got == want || got != counter.Never && want != counter.Never && got >= want-slack && got <= want+late
	}
	switch {
	case !ledger.Lends(p) || p.Limit.Algorithm > counter.LeakyBucket || got.Slot != want.Slot || got.Delay != want.Delay:
		return false
	case got.Allowed != want.Allowed:
		return after(got.RetryAfter, want.RetryAfter)
	case differ:
		return true
	}
	tokens := func(d time.Duration) int64 { return p.Refill(d.Microseconds())/1_000_000 + 1 }
	return after(got.RetryAfter, want.RetryAfter) && after(got.ResetAfter, want.ResetAfter) &&
		got.Remaining <= want.Remaining+tokens(slack) && got.Remaining >= want.Remaining-tokens(late)
}

// follow makes the model continue from the store's answer where that differs from the model's. A bucket may then go a little
// below zero.
func (m *Model) follow(before map[*kept]ledger.Account, charges []counter.Charge, results []counter.Result) {
	now, took := m.now().UnixMicro(), admits(charges, results)
	for _, k := range m.counters {
		k.account = before[k]
	}
	for i, c := range charges {
		if a := &m.at(c.Counter).account; took && results[i].Allowed && !c.Peek {
			a.State = c.Policy.AtLevel(c.Policy.Level(a.State, now)-c.N*1_000_000, now)
		}
	}
}

func compareLend(t *rapid.T, node, m Lender, asks []ledger.Ask) (taken []counter.Return, lent []ledger.Unspent) {
	want, got := make([]ledger.Grant, len(asks)), make([]ledger.Grant, len(asks))
	m.Lend(context.Background(), asks, want)
	node.Lend(context.Background(), asks, got)
	for i, c := range asks {
		if isLog(c.Policy) || isSlots(c.Policy) { // the model has no account for them
			got[i].Account, want[i].Account = ledger.Account{}, ledger.Account{}
		}
		// Node names differ in the model. If nothing was lent, the lease's time and interval mean nothing.
		if g, w := &got[i], &want[i]; (g.Account.Node == 0) == (w.Account.Node == 0) {
			g.Account.Node, w.Account.Node = 0, 0
			if g.Lent == 0 && w.Lent == 0 {
				g.LeaseTime, g.Interval, w.LeaseTime, w.Interval = 0, 0, 0, 0
			}
		}
		if got[i] != want[i] {
			t.Fatalf("ask %d of %d (%s, %s, %q, %+v): got %+v, want %+v", i+1, len(asks), c.Policy.Limit, c.Policy.Limit.Algorithm, c.Subject, c, got[i], want[i])
		}
		if got[i].Allowed && !c.Peek {
			taken = append(taken, counter.Return{Counter: c.Counter, N: c.N, Slot: got[i].Slot, Hold: c.Hold})
		}
		if got[i].Lent > 0 {
			lent = append(lent, ledger.Unspent{Counter: c.Counter, N: got[i].Lent, Interval: got[i].Interval})
		}
	}
	return taken, lent
}
