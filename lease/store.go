// Package lease decides checks of busy counters in memory, while one store remains the truth for
// all nodes. A node that is asked for a counter often borrows some of its tokens, spends
// them without asking, and gives back what it doesn't spend. It remembers what the store said of a
// counter, so that most refusals need no call either. Requests that need the store for the same
// counter at the same moment share a call.
//
// Package ledger has the arithmetic, and says why all nodes together keep the limit. What clients
// are told comes from the policy's own arithmetic, on the state that the store sent with its answer.
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
	// Lend is Take for charges that would hold more tokens than they need.
	Lend(ctx context.Context, asks []ledger.Ask, grants []ledger.Grant)
	// TakeBack returns lent tokens that weren't spent. What comes too late is void.
	TakeBack(ctx context.Context, unspent []ledger.Unspent) error
}

var _ counter.Store = (*Store)(nil)

// Store is a [counter.Store] around one that lends. Make one with [New].
type Store struct {
	inner  Lender
	local  counter.Store
	nodes  func() int
	seed   maphash.Seed
	now    func() int64 // the node's clock: ns since some moment, and never 0
	closed atomic.Bool  // nothing is borrowed any more
	sights sightings
	table  table
	leases calendar

	// For [Store.Stats].
	asked   atomic.Uint64 // charges
	here    atomic.Uint64 // charges decided without the store, about
	evicted atomic.Uint64 // counters
}

// Options of a Store. The zero value is useful.
type Options struct {
	// Counters is how many counters the node knows at a time. 0 means 458,752.
	Counters int
	// Local is where a limiter counts while the store can't be reached. Counters that the node knows go on there from where
	// they were: with [counter.FailLocal] with an even share for every node, with [counter.FailAllow] with the whole limit. The
	// result of such a charge has Err and Local. If nil, counters start untouched.
	Local counter.Store
	// Nodes is how many nodes share the store. Nil means one.
	Nodes func() int
}

// New makes a Store around one that lends.
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

// entry is one charge of a request on its way to a decision.
type entry struct {
	charge   *counter.Charge
	result   *counter.Result
	counter  *borrower // nil: the store decides
	hash     uint64    // 0: it isn't lent
	only     bool      // the request has no other
	verdict  verdict
	spent    int64 // held tokens that it has spent, and the lease that they are of:
	interval int64
	waits    int64 // tokens of it that are in the counter's pending
}

// decided ends the time in which what the charge has spent may come back.
func (e *entry) decided() {
	if e.spent > 0 {
		e.counter.undecided.Add(-e.spent)
		e.spent = 0
	}
}

type verdict uint8

const (
	open    verdict = iota // the store must be asked
	allowed                // from what is held
	refused                // from what is known
)

// Take decides the charges, all or nothing. It asks the store only if the node's tokens and
// knowledge aren't enough.
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
		a := &ask{}
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

// maxWaits is how often a request waits for others' calls before it makes one of its own.
const maxWaits = 16

// repeats reports whether two of the charges name one counter.
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

// takeSums leaves charges to the store of which some name the same counter: it adds them up, and what it says is of the
// sum. What the node holds goes back first, since the sum may need it.
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
	_ = s.returnSome(ctx, unspent) // what can't be given back is stranded
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
	// What the node knows doesn't say whether a hold is there already: then the charge fits, whatever is left.
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

// decide settles charges from the node's tokens and knowledge, and reports whether that was enough
// for all.
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
	// The request is refused, and its other limits must be reported as well, since the longest wait
	// counts. If one of them isn't known, the store is asked for all.
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

// consult decides a charge from the node's tokens and knowledge, if they suffice.
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

// undo gives back the tokens that a refused request had spent here.
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

// peek adds the tokens that the node holds to those in the store: the next request can spend both.
func (s *Store) peek(e *entry, g *ledger.Grant, now int64) {
	if g.Err != nil || !ledger.Lends(e.charge.Policy) {
		return
	}
	p, n := e.charge.Policy, e.charge.N
	s.withCounter(&e.charge.Counter, func(x *borrower) {
		var state counter.State
		switch {
		case x.base != 0 && x.base == g.Account.Time && x.policy.Load() == p: // no other node has asked, so this node's state is newer than the store's
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

// remember keeps the store's answer to a charge that isn't decided from the table. A refusal is kept if it lasts long enough to be
// worth a place, and otherwise the state, in case the store is lost.
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
	if x == nil && (e.hash == 0 || c.Returnable) { // for other charges, find has called meet already
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

// span is how recently a counter must have been used before to get a place in the table: so recently that a lease may pay, or
// that what was used may still count if the store is lost.
func span(p *counter.Policy) int64 {
	lease := max(often, 2*int64(ledger.Interval(p)))
	if p.OnStoreFailure == counter.FailRefuse {
		return lease
	}
	return max(lease, int64(min(p.Memory(), longSpan)))
}

const longSpan = 5 * time.Minute

// meet adds a counter to the table if it came before, recently enough, and more recently than the counter that it would evict.
func (s *Store) meet(h uint64, c *counter.Charge, now int64) *borrower {
	gap := s.sights.since(h, now)
	if gap > span(c.Policy) || !s.table.room(h, blinks(now-gap)) {
		return nil
	}
	return s.add(h, c, now)
}

// add adds a counter to the table. If that evicts another one, the other's tokens are given back.
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
			if r.Hold != nil { // only the store knows how much came back
				unspent = x.empty(now)
			}
			if err == nil { // the held tokens are checked against this state when they are spent
				x.giveBack(r, now)
			}
			x.forget()
		})
		s.returnOne(unspent)
	}
	return err
}

// Reset makes counters untouched, and forgets what this node knows of them. Other nodes
// may spend what they hold until their leases end, and believe a refusal for a second.
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

// Close gives back all held tokens. Later charges all go to the store.
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
