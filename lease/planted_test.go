package lease

import (
	"context"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
	"github.com/weirhq/weir/storetest"
)

// spoiled is a store with a bug: it changes asks, grants, the account afterward, or returns.
type spoiled struct {
	*storetest.Model
	ask   func(m *storetest.Model, q *ledger.Ask)
	grant func(m *storetest.Model, q *ledger.Ask, g *ledger.Grant)
	back  func(m *storetest.Model, u ledger.Unspent)
}

func (s *spoiled) Lend(ctx context.Context, asks []ledger.Ask, grants []ledger.Grant) {
	for i := range asks {
		if s.ask != nil {
			s.ask(s.Model, &asks[i])
		}
	}
	s.Model.Lend(ctx, asks, grants)
	for i := range asks {
		if s.grant != nil && grants[i].Lent > 0 {
			s.grant(s.Model, &asks[i], &grants[i])
		}
	}
}

func (s *spoiled) TakeBack(ctx context.Context, unspent []ledger.Unspent) error {
	if s.back == nil {
		return s.Model.TakeBack(ctx, unspent)
	}
	for _, u := range unspent {
		s.back(s.Model, u)
	}
	return nil
}

// raise adds tokens to an account, up to its capacity.
func raise(p *counter.Policy, a *ledger.Account, n int64) {
	if p.Limit.Algorithm <= counter.LeakyBucket {
		a.State = p.AtLevel(min(p.Level(a.State, a.Time)+n*1_000_000, p.Limit.Max()*1_000_000), a.Time)
	} else {
		a.Level = max(0, a.Level-n)
	}
}

// planted are bugs through which a lending store would create tokens.
var planted = map[string]func(*spoiled){
	"it forgets what it has lent": func(s *spoiled) {
		s.grant = func(m *storetest.Model, q *ledger.Ask, _ *ledger.Grant) {
			m.Edit(q.Counter, func(a *ledger.Account) { a.Lent = [2]int64{} })
		}
		s.back = func(m *storetest.Model, u ledger.Unspent) {
			m.Edit(u.Counter, func(a *ledger.Account) { raise(u.Policy, a, u.N) })
		}
	},
	"it lends what it doesn't debit": func(s *spoiled) {
		s.grant = func(m *storetest.Model, q *ledger.Ask, g *ledger.Grant) {
			m.Edit(q.Counter, func(a *ledger.Account) { raise(q.Policy, a, g.Lent) })
		}
	},
	"it takes back twice": func(s *spoiled) {
		s.back = func(m *storetest.Model, u ledger.Unspent) {
			_ = m.TakeBack(context.Background(), []ledger.Unspent{u})
			m.Edit(u.Counter, func(a *ledger.Account) { raise(u.Policy, a, u.N) })
		}
	},
	"it believes every claim": func(s *spoiled) {
		s.ask = func(m *storetest.Model, q *ledger.Ask) {
			m.Edit(q.Counter, func(a *ledger.Account) {
				if q.Base != 0 {
					q.Base, a.Node = a.Time, m.ID()
				}
			})
		}
	},
	"leases don't end": func(s *spoiled) {
		s.grant = func(_ *storetest.Model, _ *ledger.Ask, g *ledger.Grant) { g.LeaseTime = time.Hour }
	},
}

// TestPlantedBugsAreFound checks that a store that creates tokens breaks the bound in at least half of the simulated worlds.
func TestPlantedBugsAreFound(t *testing.T) {
	t.Parallel()
	const least = 40
	for name, plant := range planted {
		found, worlds := 0, 0
		for worlds < least || worlds < 160 && 2*found < worlds { // which bug is found where is a matter of chance
			worlds++
			if simulate(t, uint64(worlds), func(l Lender) Lender {
				s := &spoiled{Model: l.(*storetest.Model)}
				plant(s)
				return s
			}) != "" {
				found++
			}
		}
		if t.Logf("%s: found in %d of %d worlds", name, found, worlds); 2*found < worlds {
			t.Errorf("%s: found in %d of %d worlds", name, found, worlds)
		}
	}
}
