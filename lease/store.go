// Package lease decides checks of busy counters in memory, while a single store stays the source of truth for all nodes. A node
// that often asks for a counter borrows some of its tokens, spends them without asking again, and gives back what it doesn't
// spend. It also remembers the store's answers, so that most refusals need no call either. Requests that need the store for the
// same counter at the same moment share a call.
//
// Package ledger has the arithmetic, and says why all nodes together keep the limit. Results for clients come from the policy's
// own arithmetic, applied to the state in the store's answer.
package lease

import (
	"bytes"
	"context"
	"hash/maphash"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
)

// Lender is a store that can also lend tokens, and take them back.
type Lender interface {
	counter.Store
	// Lend is like Take, and also lends tokens.
	Lend(ctx context.Context, asks []ledger.Ask, grants []ledger.Grant)
	// TakeBack returns lent tokens that weren't spent. It ignores those that come too late.
	TakeBack(ctx context.Context, unspent []ledger.Unspent) error
}

var _ counter.Store = (*Store)(nil)

// Store is a [counter.Store] that wraps a store which lends. Make one with [New].
type Store struct {
	inner  Lender
	local  counter.Store
	nodes  func() int
	seed   maphash.Seed
	now    func() int64 // the node's clock: ns since the store was made, plus 1, so never 0
	closed atomic.Bool  // Close was called, so nothing is borrowed anymore
	sights sightings
	table  table
	leases calendar

	// These are for [Store.Stats].
	asked   atomic.Uint64 // charges sent to the inner store
	here    atomic.Uint64 // charges decided without it, an estimate
	evicted atomic.Uint64 // counters evicted
}

// Options of a Store. The zero value is useful.
type Options struct {
	// Counters is the maximum number of counters that the node keeps. 0 means 458,752.
	Counters int
	// Local is the store in which a limiter counts while this store can't be reached. Counters that the node knows continue
	// from their last state: with an even share of the limit for [counter.FailLocal], and with the whole limit for
	// [counter.FailAllow]. The result of such a charge has Err and Local set. If Local is nil, those counters start untouched.
	Local counter.Store
	// Nodes returns how many nodes share the store. If nil, there is one.
	Nodes func() int
}

// New makes a Store that wraps inner.
func New(inner Lender, o Options) *Store {
	start := time.Now()
	s := &Store{inner: inner, local: o.Local, nodes: o.Nodes, seed: maphash.MakeSeed()}
	s.now = func() int64 { return int64(time.Since(start)) + 1 }
	if o.Counters <= 0 {
		o.Counters = ways << 16
	}
	s.table.init(o.Counters)
	s.sights.init(8 * o.Counters)
	s.leases.store = s
	return s
}

func (s *Store) hash(c *counter.Counter) uint64 {
	hi, lo := bits.Mul64(maphash.Bytes(s.seed, c.Subject)^c.Policy.ID, 0x9e3779b97f4a7c15)
	return max(1, hi^lo)
}

// entry is one charge of a request, while it is being decided.
type entry struct {
	charge   *counter.Charge
	result   *counter.Result
	counter  *borrower // if nil, the store decides
	hash     uint64    // 0 if the counter isn't lent
	only     bool      // the request has no other charge
	verdict  verdict
	spent    int64 // held tokens that the charge has spent
	interval int64 // the interval of the lease they came from
	waits    int64 // tokens of the charge that count as pending
}

// decided ends the time during which the tokens that the charge has spent may come back.
func (e *entry) decided() {
	if e.spent > 0 {
		e.counter.undecided.Add(-e.spent)
		e.spent = 0
	}
}

type verdict uint8

const (
	open    verdict = iota // the store must be asked
	allowed                // from held tokens
	refused                // by a known state
)

// Take decides the charges, all or nothing. It asks the store only if the node's tokens and knowledge aren't enough.
func (s *Store) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	if len(charges) > 1 && repeats(charges) {
		s.takeSums(ctx, charges, results)
		return
	}
	var few [4]entry
	entries := few[:0]
	now := s.now()
	for i := range charges {
		entries = append(entries, entry{charge: &charges[i], result: &results[i], only: len(charges) == 1})
		s.find(&entries[i], now)
	}
	s.take(ctx, entries, now)
	for i := range entries {
		e := &entries[i]
		e.decided()
		if e.waits > 0 {
			e.counter.mu.Lock()
			e.counter.answer(e)
			e.counter.mu.Unlock()
		}
	}
}

func (s *Store) take(ctx context.Context, entries []entry, now int64) {
	for waits := 0; !s.decide(entries, now); waits++ {
		a := &ask{done: make(chan struct{})}
		busy := reserve(entries, a, waits < maxWaits)
		if busy == nil {
			s.ask(ctx, entries, a)
			return
		}
		if err := wait(ctx, entries, busy); err != nil {
			for i := range entries {
				if e := &entries[i]; e.verdict == open {
					*e.result = counter.Result{Err: err}
				}
			}
			s.goOn(entries, s.now())
			return
		}
		now = s.now()
	}
	s.countLocal(len(entries), now)
}

// maxWaits is how often a request waits for other requests' calls before it makes its own.
const maxWaits = 16

// repeats reports whether two of the charges name the same counter.
func repeats(charges []counter.Charge) bool {
	for i := range charges {
		for j := range i {
			a, b := &charges[i].Counter, &charges[j].Counter
			if a.Policy.ID == b.Policy.ID && bytes.Equal(a.Subject, b.Subject) {
				return true
			}
		}
	}
	return false
}

// takeSums passes charges to the store if several of them name the same counter. The store decides and reports each of
// them as if it asked for their sum. First, held tokens go back to the store, because the sum may need them.
func (s *Store) takeSums(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	now := s.now()
	var unspent []ledger.Unspent
	for i := range charges {
		s.withCounter(&charges[i].Counter, func(x *borrower) {
			if back := x.empty(now); back.N > 0 {
				unspent = append(unspent, back)
			}
		})
	}
	_ = s.returnSome(ctx, unspent) // if this fails, the tokens are lost
	s.asked.Add(uint64(len(charges)))
	s.inner.Take(ctx, charges, results)
	for i := range charges {
		s.withCounter(&charges[i].Counter, (*borrower).forget)
		if results[i].Err != nil {
			s.carryOver(&entry{charge: &charges[i], result: &results[i]}, now)
		}
	}
}

// find looks up what the node knows of a charge's counter.
func (s *Store) find(e *entry, now int64) {
	c := e.charge
	// A charge whose hold exists already always fits. The node can't know whether it does, so the store decides.
	if c.Peek || c.Hold != nil || !ledger.Lends(c.Policy) || len(c.Subject) > maxSubject || s.closed.Load() {
		return
	}
	e.hash = s.hash(&c.Counter)
	e.counter = s.table.find(e.hash)
	switch {
	case c.Returnable && e.counter != nil && !e.counter.refusesUnlocked(now, e):
		e.counter = nil
	case !c.Returnable && e.counter == nil:
		e.counter = s.meet(e.hash, c, now)
	}
}

const maxSubject = 512

// decide decides charges from the node's tokens and knowledge, and reports whether that was enough for all of them.
func (s *Store) decide(entries []entry, now int64) bool {
	refuses, opens := false, false
	for i := range entries {
		e := &entries[i]
		if e.counter == nil {
			opens = true
			continue
		}
		if e.verdict == open {
			s.consult(e, now)
		}
		opens = opens || e.verdict == open
		refuses = refuses || e.verdict == refused && !e.charge.Policy.Shadow
	}
	if !refuses {
		return !opens
	}
	// The request is refused. The results of its other limits are needed, too, since the longest wait counts. If one of them
	// isn't known, the store is asked for all.
	s.undo(entries, now)
	known := true
	for i := range entries {
		e := &entries[i]
		known = known && e.counter != nil && (e.verdict == refused || e.counter.recall(now, e))
	}
	if !known {
		for i := range entries {
			entries[i].verdict = open
		}
	}
	return known
}

// consult decides a charge from the node's tokens and knowledge, if they are enough.
func (s *Store) consult(e *entry, now int64) {
	if e.counter.refusesUnlocked(now, e) {
		return
	}
	x := e.counter
	x.mu.Lock()
	stale := x.adopt(e.charge.Policy, now)
	x.arrive(now, e.charge.N)
	x.decide(now, e)
	if e.verdict != open {
		x.answer(e)
	}
	x.mu.Unlock()
	s.returnOne(stale)
}

// undo gives back the held tokens that a refused request had spent.
func (s *Store) undo(entries []entry, now int64) {
	for i := range entries {
		e := &entries[i]
		if e.spent == 0 {
			continue
		}
		x := e.counter
		x.mu.Lock()
		late := x.unspend(now, e)
		x.mu.Unlock()
		s.returnOne(late)
	}
}

// peek adds the tokens that the node holds to those in the store, since the next request can spend both.
func (s *Store) peek(e *entry, g *ledger.Grant, now int64) {
	if g.Err != nil || !ledger.Lends(e.charge.Policy) {
		return
	}
	p, n := e.charge.Policy, e.charge.N
	s.withCounter(&e.charge.Counter, func(x *borrower) {
		var state counter.State
		switch {
		case x.base != 0 && x.base == g.Account.Time && x.policy.Load() == p: // no other node has asked, so the node's state is newer
			state = x.state
		case x.held > 0 && now < x.leaseEnd:
			state = g.Account.View(p, g.Now, x.held)
		default:
			return
		}
		v := counter.Refused
		if _, ok := p.Try(state, g.Now, n); ok {
			v = counter.Fits
		}
		p.ReportTo(e.result, state, g.Now, n, v)
	})
}

// remember keeps the store's answer to a charge whose counter isn't in the table. A refusal gets a place in the table if it
// lasts long enough. Otherwise, only the state is kept, in case the store can't be reached later.
func (s *Store) remember(e *entry, g *ledger.Grant, sent, now int64) {
	c := e.charge
	if g.Err != nil || len(c.Subject) > maxSubject || s.closed.Load() {
		return
	}
	if e.hash != 0 && !g.Allowed && (g.RetryAfter < 0 || g.RetryAfter >= worthKnowing) {
		x := s.add(e.hash, c, now)
		x.mu.Lock()
		if x.policy.Load() == c.Policy && x.asking == nil {
			x.learn(e, g, false, sent, now)
		}
		x.mu.Unlock()
		return
	}
	if c.Policy.OnStoreFailure == counter.FailRefuse || c.Policy.Limit.Algorithm == counter.Concurrency || s.local == nil {
		return
	}
	h := s.hash(&c.Counter)
	x := s.table.find(h)
	if x == nil && (e.hash == 0 || c.Returnable) { // for other charges, find has already called meet
		x = s.meet(h, c, now)
	}
	if drained := g.Remaining < c.N; x == nil && drained && s.table.room(h, blinks(now-span(c.Policy))) {
		x = s.add(h, c, now)
	}
	if x == nil {
		return
	}
	x.mu.Lock()
	stale := x.adopt(c.Policy, now)
	if x.asking == nil {
		x.hear(g, now)
	}
	x.mu.Unlock()
	s.returnOne(stale)
}

const worthKnowing = 10 * time.Millisecond

// span returns how recently a counter must have been used to get a place in the table: recently enough that a lease may pay
// off, or that earlier use may still count if the store can't be reached.
func span(p *counter.Policy) int64 {
	lease := max(often, 2*int64(ledger.Interval(p)))
	if p.OnStoreFailure == counter.FailRefuse {
		return lease
	}
	return max(lease, int64(min(p.Memory(), longSpan)))
}

const longSpan = 5 * time.Minute

// meet adds a counter to the table if its last use was recent enough, and more recent than that of the counter it would evict.
func (s *Store) meet(h uint64, c *counter.Charge, now int64) *borrower {
	gap := s.sights.since(h, now)
	if gap > span(c.Policy) || !s.table.room(h, blinks(now-gap)) {
		return nil
	}
	return s.add(h, c, now)
}

// add adds a counter to the table. If that evicts another counter, the tokens of that one are given back.
func (s *Store) add(h uint64, c *counter.Charge, now int64) *borrower {
	there, gone := s.table.add(newCounter(h, c, now))
	if gone != nil {
		gone.mu.Lock()
		back := gone.empty(now)
		gone.gone = true
		gone.mu.Unlock()
		s.evicted.Add(1)
		s.returnOne(back)
	}
	return there
}

// GiveBack gives the tokens of admitted requests back to the store.
func (s *Store) GiveBack(ctx context.Context, once counter.Once, keep time.Duration, returns []counter.Return) error {
	err := s.inner.GiveBack(ctx, once, keep, returns)
	now := s.now()
	for i := range returns {
		r := &returns[i]
		var unspent ledger.Unspent
		s.withCounter(&r.Counter, func(x *borrower) {
			if r.Hold != nil { // only the store knows how many tokens came back
				unspent = x.empty(now)
			}
			if err == nil { // tokens held are checked against this state when they are spent
				x.giveBack(r, now)
			}
			x.forget()
		})
		s.returnOne(unspent)
	}
	return err
}

// Reset resets counters, and forgets what this node knows of them. Other nodes may still spend the tokens that they
// hold until their leases end, and trust a known refusal for up to a second.
func (s *Store) Reset(ctx context.Context, counters []counter.Counter) error {
	err := s.inner.Reset(ctx, counters)
	for i := range counters {
		s.withCounter(&counters[i], func(x *borrower) {
			x.forget()
			x.held, x.state = 0, counter.State{}
		})
	}
	return err
}

func (s *Store) withCounter(c *counter.Counter, f func(*borrower)) {
	if x := s.table.find(s.hash(c)); x != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		f(x)
	}
}

// Close gives back all held tokens. Later charges all go to the inner store.
func (s *Store) Close(ctx context.Context) error {
	s.closed.Store(true)
	s.leases.stop()
	now := s.now()
	var unspent []ledger.Unspent
	s.table.all(func(x *borrower) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.gone = true
		if back := x.empty(now); back.N > 0 {
			unspent = append(unspent, back)
		}
	})
	err := s.returnSome(ctx, unspent)
	s.leases.running.Wait()
	return err
}
