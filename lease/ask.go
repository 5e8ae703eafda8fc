package lease

import (
	"context"
	"sync"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
)

// ask is a call to the store in progress. Other requests may wait for its end.
type ask struct {
	done chan struct{} // closed when the call ends
	err  error         // the call's error, for all waiters
}

// reserve begins a call for every counter that the store must be asked about. If one of the counters already has a call in
// progress, reserve returns that call and reserves nothing. A request that isn't patient, because it must not wait any longer,
// reserves nothing.
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

// release ends the reservations of a call, and wakes the requests that wait for it.
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
	close(a.done)
}

// wait blocks until another request's call ends. Until they are decided, this request's tokens count as pending: the first
// waiting request that asks the store asks for the tokens of the other waiting requests, too.
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
	case <-busy.done:
		return busy.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answer removes a charge's tokens from the pending ones, because it is decided or about to ask the store itself.
func (x *borrower) answer(e *entry) {
	x.pending -= e.waits
	e.waits = 0
}

// call holds the slices for a call to the store, for reuse.
type call struct {
	asks   []ledger.Ask
	grants []ledger.Grant
}

var calls = sync.Pool{New: func() any { return new(call) }}

// ask lets the store decide the open charges. It also asks for the tokens that waiting requests need, and for those that the
// node is likely to need soon.
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
	clear(asks) // don't retain their subjects
	c.asks, c.grants = asks, grants
	calls.Put(c)
	release(entries, a)
	if refuses {
		s.undo(entries, now)
	} else {
		s.goOn(entries, now)
	}
}

// goOn decides charges from what the node knows of their counters, while the store can't be reached or doesn't answer within
// the caller's deadline. Normally, the node trusts a known refusal for a second; in an outage, it trusts it until the charge
// would fit. After that, the limiter counts in its local store, which continues from the counter's last known state.
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
		// If some of the request's charges were decided by the store, they may have taken tokens. Then leave the decision to
		// the limiter: only it can give those tokens back if the local store refuses the request.
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

// carryOver sets the local store's counter to the node's last known state, once per outage, and sets Local in the result. The
// limiter then counts in the local store, even if the rule's failure mode lets requests pass whose counter isn't known.
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
		// Hold the lock, so that no request is counted before the counter is set.
		ctx := context.Background()
		counted := counter.Counter{Policy: p, Subject: x.subject}
		_ = s.local.Reset(ctx, []counter.Counter{counted}) // a counter from an earlier outage may be left
		if used > 0 {
			charge, result := [1]counter.Charge{{Counter: counted, N: used}}, [1]counter.Result{}
			s.local.Take(ctx, charge[:], result[:])
		}
	})
	s.returnOne(stale)
}

// learn stores the answer to one charge, and writes the charge's result. Taken is false if another charge of the request was
// refused, so that this one took nothing even if it fits.
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
		back = x.unspent(g.Lent, g.Interval) // the rules changed after the ask, or the counter was evicted
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
