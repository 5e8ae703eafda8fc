package lease

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
)

// ask is a call of the store under way that others may wait for.
type ask struct {
	done atomic.Pointer[chan struct{}] // closed when it is answered; made by the first waiter
	err  error                         // for all waiters
}

// answered is done from the start.
var answered = func() *chan struct{} {
	c := make(chan struct{})
	close(c)
	return &c
}()

func (a *ask) wait() <-chan struct{} {
	if a.done.Load() == nil {
		c := make(chan struct{})
		a.done.CompareAndSwap(nil, &c)
	}
	return *a.done.Load()
}

func (a *ask) end() {
	if c := a.done.Swap(answered); c != nil {
		close(*c)
	}
}

// reserve begins a call for every counter that the store must be asked for, unless one of them has a
// call under way already: that call is returned, and nothing is reserved. A request that must not
// wait any longer reserves nothing.
func reserve(entries []entry, a *ask, patient bool) (busy *ask) {
	for i := range entries {
		x := entries[i].counter
		if x == nil || entries[i].verdict != open || !patient {
			continue
		}
		x.mu.Lock()
		if busy = x.asking; busy == nil {
			x.asking = a
		}
		x.mu.Unlock()
		if busy != nil {
			release(entries[:i], a)
			return busy
		}
	}
	return nil
}

// release ends the reservations of an ask, and wakes its waiters.
func release(entries []entry, a *ask) {
	for i := range entries {
		if x := entries[i].counter; x != nil {
			x.mu.Lock()
			if x.asking == a {
				x.asking = nil
			}
			x.mu.Unlock()
		}
	}
	a.end()
}

// wait blocks until another request's call is answered. From now until they are decided this request's tokens count as
// pending: whoever of those that wait asks first asks for them, too.
func wait(ctx context.Context, entries []entry, busy *ask) error {
	for i := range entries {
		if e := &entries[i]; e.counter != nil && e.verdict == open && e.waits == 0 {
			e.waits = e.charge.N
			e.counter.mu.Lock()
			e.counter.pending += e.waits
			e.counter.mu.Unlock()
		}
	}
	select {
	case <-busy.wait():
		return busy.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answer ends the time in which a charge's tokens are pending: it is decided, or asks for itself.
func (x *borrower) answer(e *entry) {
	x.pending -= e.waits
	e.waits = 0
}

// call holds the slices of a call of the store, for reuse.
type call struct {
	asks   []ledger.Ask
	grants []ledger.Grant
}

var calls = sync.Pool{New: func() any { return new(call) }}

// ask has the store decide the open charges. It also asks for tokens that other requests wait for,
// and for those that the node is likely to need soon.
func (s *Store) ask(ctx context.Context, entries []entry, a *ask) {
	c := calls.Get().(*call)
	asks := c.asks[:0]
	sent := s.now()
	for i := range entries {
		e := &entries[i]
		if e.verdict != open {
			continue
		}
		q := ledger.Ask{Charge: *e.charge}
		if x := e.counter; x != nil {
			x.mu.Lock()
			late := x.prepare(sent, e, &q)
			x.mu.Unlock()
			s.returnOne(late)
		}
		asks = append(asks, q)
	}
	grants := append(c.grants[:0], make([]ledger.Grant, len(asks))...)
	s.asked.Add(uint64(len(asks)))
	s.countLocal(len(entries)-len(asks), sent)
	s.inner.Lend(ctx, asks, grants)

	now, refuses, next := s.now(), false, 0
	for i := range grants {
		refuses = refuses || grants[i].Err == nil && !grants[i].Allowed && !asks[i].Policy.Shadow
	}
	for i := range entries {
		e := &entries[i]
		if e.verdict == open {
			g := &grants[next]
			next++
			if g.Err != nil && ctx.Err() == nil {
				a.err = g.Err
			}
			s.learn(e, g, !refuses, sent, now)
		}
	}
	clear(asks) // they hold subjects
	c.asks, c.grants = asks, grants
	calls.Put(c)
	release(entries, a)
	if refuses {
		s.undo(entries, now)
	} else {
		s.goOn(entries, now)
	}
}

// goOn decides charges by what the node knows of their counters while the store can't be reached, or not in the
// caller's time. Normally the node believes a refusal for a second. In an outage the refusal holds until the cost
// would fit. From then on the limiter counts in its local store, which goes on from where the counter was.
func (s *Store) goOn(entries []entry, now int64) {
	refuses, partly := false, false
	for i := range entries {
		e := &entries[i]
		partly = partly || e.verdict == open && e.result.Err == nil
	}
	for i := range entries {
		e := &entries[i]
		if e.verdict != open || e.result.Err == nil {
			continue
		}
		// If a part of the store answered, it may have taken tokens. Only the limiter can give those back, when the local
		// store refuses the request.
		if !partly && e.counter != nil && e.counter.refusesStill(now, e) {
			e.result.Local = true
			refuses = refuses || !e.charge.Policy.Shadow
			continue
		}
		s.carryOver(e, now)
	}
	if refuses {
		s.undo(entries, now)
	}
}

// carryOver sets the local store's counter to what the node knows of it, once in an outage, and sets Local in the result. The
// limiter then counts in the local store, even with a failure mode that lets requests of unknown counters pass.
func (s *Store) carryOver(e *entry, now int64) {
	p := e.charge.Policy
	if s.local == nil || p.OnStoreFailure == counter.FailRefuse || p.Limit.Algorithm == counter.Concurrency {
		return
	}
	var stale ledger.Unspent
	s.withCounter(&e.charge.Counter, func(x *borrower) {
		if stale = x.adopt(p, now); x.known == 0 {
			return
		}
		e.result.Local = true
		if x.carried {
			return
		}
		x.carried = true
		used := whole(p) - x.left(now)
		if s.nodes != nil && p.OnStoreFailure == counter.FailLocal {
			used /= int64(max(1, s.nodes()))
		}
		// The lock is held, so that no request is counted before this one's counter is set.
		ctx := context.Background()
		counted := counter.Counter{Policy: p, Subject: x.subject}
		_ = s.local.Reset(ctx, []counter.Counter{counted}) // forget the counter of an earlier outage
		if used > 0 {
			charge, result := [1]counter.Charge{{Counter: counted, N: used}}, [1]counter.Result{}
			s.local.Take(ctx, charge[:], result[:])
		}
	})
	s.returnOne(stale)
}

// learn takes in what the store answered for one charge, and tells the caller. What fits isn't taken if another charge of
// the request was refused.
func (s *Store) learn(e *entry, g *ledger.Grant, taken bool, sent, now int64) {
	x := e.counter
	*e.result = g.Result
	switch {
	case x != nil:
	case e.charge.Peek:
		s.peek(e, g, now)
		return
	default:
		s.remember(e, g, sent, now)
		return
	}
	var back ledger.Unspent
	x.mu.Lock()
	switch {
	case g.Err != nil:
		back = x.unspend(now, e)
		x.outage = true
	case x.policy.Load() != e.charge.Policy || x.gone:
		back = x.unspent(g.Lent, g.Interval) // it was asked for under other rules, or the counter was evicted
	default:
		back = x.learn(e, g, taken, sent, now)
	}
	leased := x.held > 0
	x.mu.Unlock()
	s.returnOne(back)
	if leased {
		s.leases.add(x)
	}
}
