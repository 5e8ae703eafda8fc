package storetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
)

// Model is a store without any machinery: the arithmetic of packages weir and ledger over maps.
type Model struct {
	*shared
	node uint32
}

// shared is what the nodes of a model share.
type shared struct {
	mu       sync.Mutex // guards the maps
	now      func() time.Time
	accounts map[key]ledger.Account
	logs     map[key]*counter.Log
	records  map[key]*records
	used     map[counter.Once]bool
}

// NewModel makes an empty model with the given clock, as one node sees it.
func NewModel(now func() time.Time) *Model {
	return &Model{&shared{now: now, accounts: map[key]ledger.Account{}, logs: map[key]*counter.Log{}, records: map[key]*records{}, used: map[counter.Once]bool{}}, 1}
}

// ID is the node's.
func (m *Model) ID() uint32 { return m.node }

// Node is the same store as another node sees it.
func (m *Model) Node(node uint32) *Model { return &Model{m.shared, node} }

// Edit changes an account by hand: for bugs that are planted, to see whether a test finds them.
func (m *Model) Edit(c counter.Counter, f func(*ledger.Account)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.accounts[keyOf(c)]
	f(&a)
	m.accounts[keyOf(c)] = a
}

// Take decides the charges, all or nothing.
func (m *Model) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	asks, grants := make([]ledger.Ask, len(charges)), make([]ledger.Grant, len(charges))
	for i, c := range charges {
		asks[i].Charge = c
	}
	m.Lend(ctx, asks, grants)
	for i := range grants {
		results[i] = grants[i].Result
	}
}

// Lend decides charges that would hold more tokens, all or nothing.
func (m *Model) Lend(_ context.Context, asks []ledger.Ask, grants []ledger.Grant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	copy(grants, m.lend(m.now().UnixMicro(), asks))
}

// TakeBack returns lent tokens.
func (m *Model) TakeBack(_ context.Context, unspent []ledger.Unspent) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range unspent {
		m.takeBack(m.now().UnixMicro(), u)
	}
	return nil
}

// GiveBack returns tokens. It remembers every Once for ever.
func (m *Model) GiveBack(_ context.Context, once counter.Once, _ time.Duration, returns []counter.Return) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, gate := m.now().UnixMicro(), slices.IndexFunc(returns, func(r counter.Return) bool { return r.Recorded })
	if gate >= 0 {
		r := returns[gate]
		m.expire(now, r.Counter, r.Hold)
		if _, ok := m.recordsOf(r.Counter).all[r.Hold.ID]; !ok {
			for _, r := range returns {
				if isSlots(r.Counter) {
					m.giveBack(now, r)
				}
			}
			return counter.ErrUsed
		}
	} else if once != (counter.Once{}) {
		if m.used[once] {
			return counter.ErrUsed
		}
		m.used[once] = true
	}
	for _, r := range returns {
		m.giveBack(now, r)
	}
	return nil
}

// Reset makes counters untouched.
func (m *Model) Reset(_ context.Context, counters []counter.Counter) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range counters {
		m.reset(c)
	}
	return nil
}

type key struct {
	policy  uint64
	subject string
}

func keyOf(c counter.Counter) key { return key{c.Policy.ID, string(c.Subject)} }

func isLog(c counter.Counter) bool { return c.Policy.Limit.Algorithm == counter.SlidingLog }

func (m *Model) log(c counter.Counter) *counter.Log {
	l := m.logs[keyOf(c)]
	if l == nil {
		l = &counter.Log{}
		m.logs[keyOf(c)] = l
	}
	return l
}

func isSlots(c counter.Counter) bool { return c.Policy.Limit.Algorithm == counter.Concurrency }

func (m *Model) lend(now int64, asks []ledger.Ask) []ledger.Grant {
	grants := make([]ledger.Grant, len(asks))
	fits, there := make([]bool, len(asks)), make([]bool, len(asks))
	all := true
	// A counter that several charges name is asked for all their tokens, and debited once: by the first
	// that isn't in shadow, if there is one. That one's hold stands for all.
	asks = slices.Clone(asks)
	asked, payer := map[key]int64{}, map[key]int{}
	for i, c := range asks {
		k := keyOf(c.Counter)
		asked[k] = min(asked[k]+c.N, c.Policy.MaxCharge())
		if j, again := payer[k]; again {
			asks[i].Want, asks[i].Waiting, asks[j].Want, asks[j].Waiting = 0, 0, 0, 0
			if !asks[j].Policy.Shadow || c.Policy.Shadow {
				continue
			}
		}
		payer[k] = i
	}
	for _, i := range payer {
		m.expire(now, asks[i].Counter, asks[i].Hold)
	}
	for i := range asks {
		c := &asks[i]
		c.N, c.Hold = asked[keyOf(c.Counter)], asks[payer[keyOf(c.Counter)]].Hold
		fits[i], there[i] = m.fits(now, c), m.there(c)
		all = all && (fits[i] || c.Policy.Shadow)
	}
	verdicts := make([]counter.Verdict, len(asks))
	for i := range asks {
		c := &asks[i]
		switch {
		case fits[i] && (all || c.Policy.Book) && !c.Peek:
			verdicts[i] = counter.Taken
		case fits[i]:
			verdicts[i] = counter.Fits
		}
		if payer[keyOf(c.Counter)] == i && verdicts[i] != counter.Fits {
			grants[i].Lent = m.charge(now, c, verdicts[i])
		}
	}
	for i := range asks {
		m.report(now, &asks[i], verdicts[i], &grants[i])
		grants[i].Again = there[i]
	}
	return grants
}

func (m *Model) fits(now int64, c *ledger.Ask) (fits bool) {
	a := m.accounts[keyOf(c.Counter)]
	switch {
	case m.there(c):
		return true
	case isSlots(c.Counter):
		return c.N <= c.Policy.Limit.Count-m.recordsOf(c.Counter).sum()
	case isLog(c.Counter):
		return c.Policy.FitsLog(m.log(c.Counter), now, c.N)
	case ledger.Lends(c.Policy):
		_, _, fits = a.Lend(c.Policy, now, m.node, c)
	default:
		_, fits = try(&c.Charge, a.State, now)
	}
	return fits
}

func try(c *counter.Charge, s counter.State, now int64) (counter.State, bool) {
	if c.Peek {
		return c.Policy.Try(s, now, c.N)
	}
	return c.Policy.Debit(s, now, c.N)
}

// charge takes what a charge asks for, if it fits, and returns what it was lent. What fits leaves its hold, or renews it.
func (m *Model) charge(now int64, c *ledger.Ask, v counter.Verdict) (lent int64) {
	if !m.there(c) {
		lent = m.debit(now, c)
	}
	if c.Hold != nil && v == counter.Taken {
		var g ledger.Grant
		m.report(now, c, v, &g)
		m.recordsOf(c.Counter).put(c.Counter, c.Hold, now, c.N, g.Slot)
	}
	return lent
}

func (m *Model) debit(now int64, c *ledger.Ask) (lent int64) {
	a := m.accounts[keyOf(c.Counter)]
	switch {
	case isSlots(c.Counter):
		return 0
	case isLog(c.Counter):
		c.Policy.TryLog(m.log(c.Counter), now, c.N)
		return 0
	case ledger.Lends(c.Policy):
		a, lent, _ = a.Lend(c.Policy, now, m.node, c)
	default:
		a.State, _ = try(&c.Charge, a.State, now)
	}
	m.accounts[keyOf(c.Counter)] = a
	return lent
}

func (m *Model) report(now int64, c *ledger.Ask, v counter.Verdict, g *ledger.Grant) {
	a := m.accounts[keyOf(c.Counter)]
	g.Account, g.Now = a, now
	switch {
	case isSlots(c.Counter):
		g.Result = m.recordsOf(c.Counter).report(c.Policy, now, c.N, v)
	case isLog(c.Counter):
		g.Result = c.Policy.ReportLog(m.log(c.Counter), now, c.N, v)
	case ledger.Lends(c.Policy):
		a.Report(c.Policy, &g.Result, now, c.N, v)
		g.LeaseTime, g.Interval = a.Lease(c.Policy, now, m.node)
	default:
		c.Policy.ReportTo(&g.Result, a.State, now, c.N, v)
	}
}

func (m *Model) giveBack(now int64, r counter.Return) {
	m.expire(now, r.Counter, r.Hold)
	if r.Hold != nil {
		m.settle(now, r)
		return
	}
	m.refund(now, r.Counter, r.N, r.Slot)
}

func (m *Model) refund(now int64, c counter.Counter, n, slot int64) {
	k := keyOf(c)
	switch {
	case isSlots(c):
		m.recordsOf(c).free(n)
	case isLog(c):
		c.Policy.ReturnLog(m.log(c), now, n, slot)
	case ledger.Lends(c.Policy):
		m.accounts[k] = m.accounts[k].Refund(c.Policy, now, n, slot)
	default:
		m.accounts[k] = ledger.Account{State: c.Policy.Return(m.accounts[k].State, now, n, slot)}
	}
}

func (m *Model) takeBack(now int64, u ledger.Unspent) {
	m.accounts[keyOf(u.Counter)] = m.accounts[keyOf(u.Counter)].TakeBack(u.Policy, now, m.node, &u)
}

func (m *Model) reset(c counter.Counter) {
	delete(m.accounts, keyOf(c))
	delete(m.logs, keyOf(c))
	delete(m.records, keyOf(c))
}
