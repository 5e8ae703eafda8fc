// Package lease decides checks of hot counters in memory, while one store remains
// the truth for all nodes. A node that is often asked for a counter borrows some
// of its tokens and spends them by itself for at most [weir.MaxLease]; what it
// doesn't spend it gives back. One that asks for a counter seldom may hold a few for
// longer: see [weir.Terms]. Refusals are remembered, and concurrent asks for one counter are one.
//
// Tokens are debited before they are spent, so a node that dies strands what it
// held. All nodes together admit in any time at most what the store alone would
// admit in that time and one lease's; see [weir.Policy.Lend] for why.
package lease

import (
	"context"
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
)

var _ weir.Store = (*Store)(nil)

// Store is a [weir.Store] around another one that lends. Make one with [New].
type Store struct {
	inner  weir.Store
	local  weir.Store
	nodes  func() int
	seed   maphash.Seed
	start  time.Time
	closed atomic.Bool // nothing is borrowed any more
	sights sightings
	table  table
	asked  atomic.Uint64

	mu      sync.Mutex // guards what follows, and running against additions while Close waits for it
	due     [dueTicks][]*holding
	swept   int64 // the last tick whose leases were looked at
	waiting int   // how many are in due
	next    int64 // the first tick that has any
	timer   *time.Timer
	running sync.WaitGroup
}

// Options of a Store. The zero value is useful.
type Options struct {
	// Counters is how many counters the node knows at a time. 0 means 458,752.
	Counters int
	// Local is where a limiter counts while the store can't be reached: counters that the
	// node knows go on there from where they were, with an even share of each for every
	// node. Nil means that they begin anew.
	Local weir.Store
	// Nodes is how many nodes share the store. Nil means one.
	Nodes func() int
}

// New makes a Store around one that lends.
func New(inner weir.Store, o Options) *Store {
	s := &Store{inner: inner, local: o.Local, nodes: o.Nodes, seed: maphash.MakeSeed(), start: time.Now()}
	if o.Counters <= 0 {
		o.Counters = ways << 16
	}
	s.table.init(o.Counters)
	s.sights.init(8 * o.Counters)
	return s
}

// Asked is for how many charges the store was asked since the start.
func (s *Store) Asked() uint64 { return s.asked.Load() }

func (s *Store) now() int64 { return int64(time.Since(s.start)) + 1 }

func (s *Store) hash(c *weir.Counter) uint64 {
	hi, lo := bits.Mul64(maphash.Bytes(s.seed, c.Subject)^c.Policy.ID, 0x9e3779b97f4a7c15)
	return max(1, hi^lo)
}

// Take decides the charges, all or nothing: those of hot counters here, if it can.
func (s *Store) Take(ctx context.Context, charges []weir.Charge, results []weir.Result) {
	if len(charges) == 1 {
		if s.takeOne(ctx, charges, results); results[0].Err != nil && ctx.Err() == nil {
			s.goOn(&charges[0], &results[0])
		}
		return
	}
	s.takeAll(ctx, charges, results)
}

// lends: a charge that may be decided here.
func (s *Store) lends(c *weir.Charge) bool {
	return !c.Peek && c.Policy.Lends() && len(c.Subject) <= maxSubject && !s.closed.Load()
}

const maxSubject = 512

func (s *Store) takeOne(ctx context.Context, charges []weir.Charge, results []weir.Result) {
	c, r := &charges[0], &results[0]
	if !s.lends(c) {
		s.pass(ctx, charges, results)
		s.addHeld(c, r)
		return
	}
	h, now := s.hash(&c.Counter), s.now()
	x := s.table.find(h)
	if x == nil {
		if x = s.meet(h, c, now); x == nil {
			s.pass(ctx, charges, results)
			s.remember(c, r, h, now)
			return
		}
	}
	if x.refusedUnlocked(now, c, r) {
		return
	}
	x.mu.Lock()
	x.adopt(c.Policy)
	x.arrive(now, c.N, 1)
	a, waits := (*ask)(nil), 0
	for {
		if x.spend(now, c.N, r) || x.refused(now, c.N, r) {
			x.unlock()
			return
		}
		switch loan := x.loan(now); {
		case loan.Want == 0 || waits > 3 || waits > 0 && a.few && (loan.Slow || !a.slow): // it isn't worth a lease, or there will be none for all: nobody needs to wait for another
			x.unlock()
			s.pass(ctx, charges, results)
			s.learn(ctx, x, c, weir.Loan{}, now, r, nil)
			return
		case x.asking == nil:
			loan.Want += x.pending
			loan.Waiting = x.pending
			s.ask(ctx, x, c, r, loan)
			return
		}
		var err error
		if a, err = x.wait(ctx, c.N); err != nil {
			x.unlock()
			*r = weir.Result{Err: err}
			return
		}
		waits++
		now = s.now()
		// It came before the answer, which holds for it, too. Whether there are enough was asked only for who waited before; the
		// second of those answers is final, lest what refilled meanwhile be lost when a burst ends.
		if x.held < c.N && (a.full > 0 && c.N >= a.full || a.none && waits > 2) {
			x.turnAway(now, c.N, r)
			x.unlock()
			return
		}
	}
}

// goOn refuses, while the store can't be reached, what it refused before for longer than that. For as long a refusal
// isn't believed while the store can be asked, but nothing has refilled meanwhile, and what a rule does
// without the store would let it pass.
func (s *Store) goOn(c *weir.Charge, r *weir.Result) {
	if !s.lends(c) {
		return
	}
	s.withHolding(&c.Counter, func(x *holding) {
		now := s.now()
		if x.fullUntil > 0 && c.N >= x.full && x.policy.Load() == c.Policy && now < x.retryAt.Load() {
			x.turnAway(now, c.N, r)
		}
	})
}

// addHeld tells who peeks of what the node holds, too: that is there for the next one who takes.
func (s *Store) addHeld(c *weir.Charge, r *weir.Result) {
	if !c.Peek || r.Err != nil {
		return
	}
	s.withHolding(&c.Counter, func(x *holding) {
		now := s.now()
		switch {
		case x.policy.Load() != c.Policy || now >= x.until || x.held == 0:
		case now >= x.ripe:
			r.Remaining = min(r.Remaining+x.held, x.terms().Most)
			if x.held >= c.N {
				r.Allowed, r.RetryAfter = true, 0
			}
		default: // the store has none, and takes all that refills for spent
			r.Remaining = x.there(now)
			if c.N <= x.terms().Most {
				r.RetryAfter = time.Duration(max(0, x.ripens(c.N)-now))
				r.Allowed = r.RetryAfter == 0
			}
		}
	})
}

// wait is until the ask under way is answered. It is called with the lock held, and returns with it.
func (x *holding) wait(ctx context.Context, n int64) (*ask, error) {
	a := x.asking
	if a.done == nil {
		a.done = make(chan struct{})
	}
	x.pending += n
	x.unlock()
	var err error
	select {
	case <-a.done:
		err = a.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	x.mu.Lock()
	x.pending -= n
	return a, err
}

// ask asks the store for a charge, and for some more. It is called with the holding's lock held, and returns without it.
func (s *Store) ask(ctx context.Context, x *holding, c *weir.Charge, r *weir.Result, loan weir.Loan) {
	a := &ask{slow: loan.Slow}
	sent := s.now()
	x.asking = a
	x.out -= loan.Spent
	x.unlock()
	question := [1]weir.Charge{*c}
	question[0].Loan = loan
	answer := [1]weir.Result{}
	s.pass(ctx, question[:], answer[:])
	*r = answer[0]
	s.learn(ctx, x, c, loan, sent, r, a)
}

// pass asks the store.
func (s *Store) pass(ctx context.Context, charges []weir.Charge, results []weir.Result) {
	s.asked.Add(uint64(len(charges)))
	s.inner.Take(ctx, charges, results)
}

// learn takes in what the store answered, and ends the ask, if it was one that others may wait for.
func (s *Store) learn(ctx context.Context, x *holding, c *weir.Charge, loan weir.Loan, sent int64, r *weir.Result, a *ask) {
	now := s.now()
	var leftover weir.Return
	lost, left := false, int64(0)
	x.mu.Lock()
	switch {
	case r.Err != nil && ctx.Err() != nil: // its own fault: those who wait for it ask themselves
	case r.Err != nil:
		if lost = !x.outage && x.lastAt > 0; lost {
			if left = x.there(now); !x.slow {
				left += int64(x.terms().Refill * float64(now-x.lastAt))
			}
		}
		x.outage = true
		if a != nil {
			a.err = r.Err
		}
	case x.policy.Load() != c.Policy, x.gone: // it was asked under other rules, or for nobody
		leftover = weir.Return{Counter: c.Counter, N: r.Lent, Slot: r.Slot, Unspent: true, Slow: r.LentFor > weir.MaxLease}
		leftover.Subject = x.subject
	default:
		leftover = x.learn(sent, now, c.N, loan, r)
		switch {
		case a == nil:
		case !r.Allowed:
			a.full = c.N
		case r.Lent < loan.Waiting && r.Remaining == 0: // it was asked for all of them, and has no more
			a.none = true
		case loan.Slow:
			a.few = r.Lent < min(loan.Want, x.pending)
		default:
			a.few = r.Lent < loan.Waiting
		}
		if r.Lent > 0 {
			s.watch(x)
		}
		r.Remaining = x.there(now)
	}
	if a != nil {
		if x.asking = nil; a.done != nil {
			close(a.done)
		}
	}
	x.unlock()
	r.Lent, r.LentFor, r.LentBy = 0, 0, 0
	if leftover.N > 0 {
		s.giveBack([]weir.Return{leftover})
	}
	if lost {
		s.carryOver(c, left)
	}
}

// carryOver has the local store go on from what a counter had left when the store was lost.
func (s *Store) carryOver(c *weir.Charge, left int64) {
	if s.local == nil {
		return
	}
	used := c.Policy.Terms().Most - left
	if s.nodes != nil {
		used /= int64(max(1, s.nodes()))
	}
	if used > 0 {
		charge := [1]weir.Charge{{Counter: c.Counter, N: used}}
		var result [1]weir.Result
		s.local.Take(context.Background(), charge[:], result[:])
	}
}

// remember keeps a refusal of a counter that isn't held, if it lasts.
func (s *Store) remember(c *weir.Charge, r *weir.Result, h uint64, sent int64) {
	if r.Err != nil || r.Allowed || r.RetryAfter >= 0 && int64(r.RetryAfter) < 5*margin {
		return
	}
	x := s.add(h, c, 0)
	x.mu.Lock()
	x.adopt(c.Policy)
	x.learn(sent, s.now(), c.N, weir.Loan{}, r)
	x.unlock()
}

// meet makes a holding of a counter that came before, so short a time ago that it may be worth it, and shorter than another
// that would have to go.
func (s *Store) meet(h uint64, c *weir.Charge, now int64) *holding {
	gap := s.sights.since(h, now)
	if gap > int64(weir.MaxSlowLease) {
		return nil
	}
	if t := c.Policy.Terms(); gap > often && (t.SlowTokens == 0 || gap > int64(t.SlowLease)) {
		return nil
	}
	if !s.table.room(h, blinks(now-gap)) {
		return nil
	}
	return s.add(h, c, now-gap)
}

// add makes a holding of a counter that came before at some moment, or 0. Another one may have to go for it: its
// lease is given back.
func (s *Store) add(h uint64, c *weir.Charge, came int64) *holding {
	now := s.now()
	x := &holding{hash: h, subject: slices.Clone(c.Subject), came: now, every: 1 / c.Policy.Terms().Refill, busy: -calm}
	if came > 0 {
		x.came, x.every = came, float64(now-came)
	}
	x.policy.Store(c.Policy)
	x.window = now / rateWindow
	x.seen.Store(blinks(now))
	there, gone := s.table.add(x)
	if gone != nil {
		gone.mu.Lock()
		gone.gone = true
		back, plenty := gone.empty(now), gone.plenty()
		gone.mu.Unlock()
		if back.N > 0 && !plenty {
			s.giveBack([]weir.Return{back})
		}
	}
	return there
}

// GiveBack returns tokens of requests that were admitted, to the store.
func (s *Store) GiveBack(ctx context.Context, once weir.Once, keep time.Duration, returns []weir.Return) error {
	err := s.inner.GiveBack(ctx, once, keep, returns)
	for i := range returns {
		s.withHolding(&returns[i].Counter, func(x *holding) { x.fullUntil, x.pause = 0, 0 })
	}
	return err
}

// Reset makes counters untouched, and forgets what this node knows of them. Other nodes
// may spend what they hold until their leases end.
func (s *Store) Reset(ctx context.Context, counters []weir.Counter) error {
	err := s.inner.Reset(ctx, counters)
	for i := range counters {
		s.withHolding(&counters[i], func(x *holding) {
			x.gone = true
			x.forget()
			s.table.remove(x)
		})
	}
	return err
}

func (s *Store) withHolding(c *weir.Counter, f func(*holding)) {
	if x := s.table.find(s.hash(c)); x != nil {
		x.mu.Lock()
		defer x.unlock()
		f(x)
	}
}

// Close gives back everything that is held. Charges that come later all go to the store.
func (s *Store) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed.Store(true)
	if s.timer != nil {
		s.timer.Stop() // all that it would give back is given back here
	}
	s.mu.Unlock()
	now := s.now()
	var returns []weir.Return
	s.table.all(func(x *holding) {
		x.mu.Lock()
		defer x.unlock()
		x.gone = true
		if back := x.empty(now); back.N > 0 {
			returns = append(returns, back)
		}
	})
	err := s.giveBackSome(ctx, returns)
	s.running.Wait()
	return err
}
