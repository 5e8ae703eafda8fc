package storetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
)

// Model is the simplest possible store: the arithmetic of packages counter and ledger over a map.
type Model struct {
	*shared
	node uint32
}

// shared is the state that all nodes of a model share.
type shared struct {
	mu       sync.Mutex // guards the maps and their contents
	now      func() time.Time
	counters map[key]*kept
	used     map[counter.Once]bool
}

type key struct {
	policy  uint64
	subject string
}

// kept is the state of one counter.
type kept struct {
	account ledger.Account // unused for logs and slots
	log     counter.Log
	records records
}

// NewModel returns an empty model with the given clock, as node 1 sees it.
func NewModel(now func() time.Time) *Model {
	return &Model{&shared{now: now, counters: map[key]*kept{}, used: map[counter.Once]bool{}}, 1}
}

// ID returns the node's number.
func (m *Model) ID() uint32 { return m.node }

// Node returns the same model as another node sees it.
func (m *Model) Node(node uint32) *Model { return &Model{m.shared, node} }

// Edit changes an account by hand. Tests plant bugs with it, to check that they are found.
func (m *Model) Edit(c counter.Counter, f func(*ledger.Account)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.at(c).account)
}

func (m *Model) at(c counter.Counter) *kept {
	name := key{c.Policy.ID, string(c.Subject)}
	k := m.counters[name]
	if k == nil {
		k = &kept{records: records{all: map[counter.Once]record{}}}
		m.counters[name] = k
	}
	return k
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

// Lend decides charges that may also borrow tokens, all or nothing.
func (m *Model) Lend(_ context.Context, asks []ledger.Ask, grants []ledger.Grant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now().UnixMicro()
	fits, there := make([]bool, len(asks)), make([]bool, len(asks))
	all := true
	// If several charges name one counter, each asks for their sum, and only one is debited: the first that isn't in shadow, or
	// else the first. Its hold covers the sum.
	asks = slices.Clone(asks)
	asked, payer := map[*kept]int64{}, map[*kept]int{}
	for i, c := range asks {
		k := m.at(c.Counter)
		asked[k] = min(asked[k]+c.N, c.Policy.MaxCharge())
		if j, again := payer[k]; again {
			asks[i].Want, asks[i].Waiting, asks[j].Want, asks[j].Waiting = 0, 0, 0, 0
			if !asks[j].Policy.Shadow || c.Policy.Shadow {
				continue
			}
		}
		payer[k] = i
	}
	for k, i := range payer {
		k.expire(now, asks[i].Policy, asks[i].Hold)
	}
	for i := range asks {
		c := &asks[i]
		k := m.at(c.Counter)
		c.N, c.Hold = asked[k], asks[payer[k]].Hold
		there[i] = k.there(c.Hold)
		fits[i] = there[i] || k.fits(now, m.node, c)
		all = all && (fits[i] || c.Policy.Shadow)
	}
	verdicts, lent := make([]counter.Verdict, len(asks)), make([]int64, len(asks))
	for i := range asks {
		c := &asks[i]
		switch {
		case fits[i] && (all || c.Policy.Book) && !c.Peek:
			verdicts[i] = counter.Taken
		case fits[i]:
			verdicts[i] = counter.Fits
		}
		if k := m.at(c.Counter); payer[k] == i && verdicts[i] != counter.Fits {
			lent[i] = k.charge(now, m.node, c, verdicts[i])
		}
	}
	for i := range asks {
		grants[i] = m.at(asks[i].Counter).grant(now, m.node, &asks[i], verdicts[i])
		grants[i].Lent, grants[i].Again = lent[i], there[i]
	}
}

// TakeBack returns lent tokens that weren't spent.
func (m *Model) TakeBack(_ context.Context, unspent []ledger.Unspent) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, u := range unspent {
		k := m.at(u.Counter)
		k.account = k.account.TakeBack(u.Policy, m.now().UnixMicro(), m.node, &u)
	}
	return nil
}

// GiveBack returns tokens. It remembers each Once forever.
func (m *Model) GiveBack(_ context.Context, once counter.Once, _ time.Duration, returns []counter.Return) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, gate, void := m.now().UnixMicro(), slices.IndexFunc(returns, func(r counter.Return) bool { return r.Recorded }), false
	if gate >= 0 {
		r := returns[gate]
		k := m.at(r.Counter)
		k.expire(now, r.Policy, r.Hold)
		_, recorded := k.records.all[r.Hold.ID]
		void = !recorded
	} else if once != (counter.Once{}) {
		if m.used[once] {
			return counter.ErrUsed
		}
		m.used[once] = true
	}
	for _, r := range returns {
		if !void || isSlots(r.Policy) {
			m.at(r.Counter).giveBack(now, r)
		}
	}
	if void {
		return counter.ErrUsed
	}
	return nil
}

// Reset forgets counters.
func (m *Model) Reset(_ context.Context, counters []counter.Counter) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range counters {
		delete(m.counters, key{c.Policy.ID, string(c.Subject)})
	}
	return nil
}

func isLog(p *counter.Policy) bool { return p.Limit.Algorithm == counter.SlidingLog }

func isSlots(p *counter.Policy) bool { return p.Limit.Algorithm == counter.Concurrency }

func (k *kept) fits(now int64, node uint32, c *ledger.Ask) (fits bool) {
	switch p := c.Policy; {
	case isSlots(p):
		return c.N <= p.Limit.Count-k.records.sum()
	case isLog(p):
		return p.FitsLog(&k.log, now, c.N)
	case ledger.Lends(p):
		_, _, fits = k.account.Lend(p, now, node, c)
	default:
		_, fits = try(&c.Charge, k.account.State, now)
	}
	return fits
}

func try(c *counter.Charge, s counter.State, now int64) (counter.State, bool) {
	if c.Peek {
		return c.Policy.Try(s, now, c.N)
	}
	return c.Policy.Debit(s, now, c.N)
}

// charge takes what a charge asks for, if it fits, and returns how many tokens were lent. It also records or renews the hold.
func (k *kept) charge(now int64, node uint32, c *ledger.Ask, v counter.Verdict) (lent int64) {
	switch p := c.Policy; {
	case k.there(c.Hold) || isSlots(p):
	case isLog(p):
		p.TryLog(&k.log, now, c.N)
	case ledger.Lends(p):
		k.account, lent, _ = k.account.Lend(p, now, node, c)
	default:
		k.account.State, _ = try(&c.Charge, k.account.State, now)
	}
	if c.Hold != nil && v == counter.Taken {
		k.records.put(c.Policy, c.Hold, now, c.N, k.grant(now, node, c, v).Slot)
	}
	return lent
}

func (k *kept) grant(now int64, node uint32, c *ledger.Ask, v counter.Verdict) ledger.Grant {
	g := ledger.Grant{Account: k.account, Now: now}
	switch p := c.Policy; {
	case isSlots(p):
		g.Result = k.records.report(p, now, c.N, v)
	case isLog(p):
		g.Result = p.ReportLog(&k.log, now, c.N, v)
	case ledger.Lends(p):
		k.account.Report(p, &g.Result, now, c.N, v)
		g.LeaseTime, g.Interval = k.account.Lease(p, now, node)
	default:
		p.ReportTo(&g.Result, k.account.State, now, c.N, v)
	}
	return g
}

func (k *kept) giveBack(now int64, r counter.Return) {
	k.expire(now, r.Policy, r.Hold)
	if r.Hold != nil {
		k.settle(now, r)
		return
	}
	k.refund(now, r.Policy, r.N, r.Slot)
}

func (k *kept) refund(now int64, p *counter.Policy, n, slot int64) {
	switch {
	case isSlots(p):
		k.records.free(n)
	case isLog(p):
		p.ReturnLog(&k.log, now, n, slot)
	case ledger.Lends(p):
		k.account = k.account.Refund(p, now, n, slot)
	default:
		k.account = ledger.Account{State: p.Return(k.account.State, now, n, slot)}
	}
}

// expire ends the holds whose time is over. Stores do this only for charges that have or need holds.
func (k *kept) expire(now int64, p *counter.Policy, hold *counter.Hold) {
	if hold != nil || p.GivesBack || isSlots(p) {
		k.account.State = k.records.expire(p, k.account.State, now)
	}
}

// there reports whether a charge's hold exists already.
func (k *kept) there(hold *counter.Hold) bool {
	if hold == nil {
		return false
	}
	r, ok := k.records.all[hold.ID]
	return ok && !r.returned
}

// settle ends a hold, and gives back what the request didn't use, or takes what it used beyond its charge.
func (k *kept) settle(now int64, r counter.Return) {
	if _, ok := k.records.all[r.Hold.ID]; !ok && r.Recorded {
		return
	}
	n, slot := k.records.settle(&r)
	switch {
	case isSlots(r.Policy):
	case n > 0:
		k.refund(now, r.Policy, n, slot)
	case n < 0 && !isLog(r.Policy):
		books := r.Policy.With(func(d *counter.Definition) { d.Book = true }) // takes tokens that don't fit, too
		k.account.State, _ = books.Debit(k.account.State, now, -n)
	}
}
