// Package memstore keeps counters in this process: in a compact hash table without pointers and
// with a memory bound, which answers in a fraction of a microsecond and allocates nothing. It is
// the store of a single node, and the reference that other stores are compared with.
//
// A counter takes 24 bytes, or 30 to 37 including the free cells around it. Its key is a 63-bit
// hash, seeded with a secret of the process, so clients can't construct collisions. With ten
// million counters, the chance that a given counter shares its hash with another is one in 10^11.
//
// Sliding logs, the slots of concurrency limits and the records of reservations are kept beside the
// table, within the same memory bound.
package memstore

import (
	"context"
	"hash/maphash"
	"math/bits"
	"slices"
	"time"

	"github.com/weirhq/weir/counter"
)

var _ counter.Store = (*Store)(nil)

// Store is an in-process [counter.Store]. Make one with [New].
type Store struct {
	table table
	clock clock
	now   func() time.Time
	seed  maphash.Seed
}

// Options configures a [Store]. The zero value is useful.
type Options struct {
	// MemoryCap is the most memory that counters may take, in bytes. At the cap, the counters that
	// have used the least of their limits are evicted first. Zero means [DefaultMemoryCap], 256 MiB.
	MemoryCap int64
	// Now replaces the clock in tests that step it backwards. If nil, the store uses the system's clock.
	Now func() time.Time
}

// DefaultMemoryCap is the memory cap of a Store whose [Options] don't set one.
const DefaultMemoryCap = 256 << 20

// New returns an empty Store.
func New(opts Options) *Store {
	s := &Store{now: opts.Now, seed: maphash.MakeSeed()}
	s.clock.init()
	if opts.MemoryCap <= 0 {
		opts.MemoryCap = DefaultMemoryCap
	}
	s.table.init(s.time(), opts.MemoryCap)
	return s
}

func (s *Store) time() int64 {
	if s.now != nil {
		return s.now().UnixMicro()
	}
	return s.clock.now()
}

func (s *Store) hash(c *counter.Counter) uint64 {
	return mix(maphash.Bytes(s.seed, c.Subject), c.Policy)
}

// mix combines the hash of a subject with its policy into the hash of a counter. It never returns
// 0, which marks an empty cell, and leaves the busy bit clear.
func mix(subject uint64, p *counter.Policy) uint64 {
	hi, lo := bits.Mul64(subject^p.ID, 0x9e3779b97f4a7c15)
	return max(2, (hi^lo)&^busy)
}

// Take debits all charges, or none if one of them doesn't fit.
func (s *Store) Take(_ context.Context, charges []counter.Charge, results []counter.Result) {
	if len(charges) == 1 && !keeps(&charges[0]) {
		s.takeOne(&charges[0], &results[0])
		return
	}
	s.takeAll(charges, results)
}

func (s *Store) takeOne(c *counter.Charge, r *counter.Result) {
	h := s.hash(&c.Counter)
	if c.Policy.Limit.Algorithm == counter.SlidingLog {
		s.takeLog(c, r, h)
		return
	}
	state, now, ok := s.debit(c, h)
	c.Policy.ReportTo(r, state, now, c.N, verdict(ok, !c.Peek))
}

// Allow takes n tokens of one counter if they fit, and reports whether they did. It is a Take for
// callers that need no other result.
func (s *Store) Allow(p *counter.Policy, subject string, n int64) bool {
	h := mix(maphash.String(s.seed, subject), p)
	c := counter.Charge{Counter: counter.Counter{Policy: p}, N: n}
	if p.Limit.Algorithm == counter.SlidingLog {
		var r counter.Result
		s.takeLog(&c, &r, h)
		return r.Allowed
	}
	_, _, ok := s.debit(&c, h)
	return ok
}

// debit charges a counter. It returns the counter's state, the moment of the decision, and whether
// the charge fits.
func (s *Store) debit(c *counter.Charge, h uint64) (state counter.State, now int64, ok bool) {
	now = s.time()
	cell := s.table.lookup(h).find(h)
	if cell == nil {
		return s.debitNew(now, c, h)
	}
	return s.update(cell, h, c, now)
}

// update charges a counter whose cell is locked, and unlocks the cell.
func (s *Store) update(cell *cell, h uint64, c *counter.Charge, now int64) (counter.State, int64, bool) {
	old := cell.decode(c.Policy, s.table.epoch)
	if old.Time > now {
		// Another check was decided after this one read the clock, and its state includes refill up
		// to its own time. Moving the state back in time would count that refill twice. If the
		// state still lies in the future of a newly read clock, the clock really ran backwards.
		now = s.time()
	}
	state, ok := try(c, old, now, c.N)
	if ok && c.Peek {
		state = old
	}
	if state != old {
		cell.encode(c.Policy, state, s.table.epoch)
	}
	cell.unlock(h)
	return state, now, ok
}

// debitNew charges a counter that a lookup without the segment's lock didn't find.
func (s *Store) debitNew(now int64, c *counter.Charge, h uint64) (counter.State, int64, bool) {
	g := s.table.lock(h)
	if cell := g.layout.find(h); cell != nil { // another check was moving the counter, or has added it
		s.table.unlock(g)
		return s.update(cell, h, c, now)
	}
	state, ok := try(c, counter.State{}, now, c.N)
	if !c.Peek && (ok || state != (counter.State{})) { // CountRefused policies store refusals, too
		cell := s.table.add(g, h, now)
		cell.encode(c.Policy, state, s.table.epoch)
		cell.unlock(h)
	} else {
		state = counter.State{}
	}
	s.table.unlock(g)
	return state, now, ok
}

// try returns the counter's state after the charge, and whether the charge fits.
func try(c *counter.Charge, s counter.State, now, n int64) (counter.State, bool) {
	if c.Peek {
		return c.Policy.Try(s, now, n)
	}
	return c.Policy.Debit(s, now, n)
}

func verdict(fits, taken bool) counter.Verdict {
	switch {
	case !fits:
		return counter.Refused
	case taken:
		return counter.Taken
	}
	return counter.Fits
}

func (s *Store) takeLog(c *counter.Charge, r *counter.Result, h uint64) {
	g := s.table.lock(h)
	defer s.table.unlock(g)
	now := s.time() // read after locking, so not before the time of an earlier check
	st := step{hash: h, n: c.N, log: true, segment: g}
	s.look(&st, c, now)
	s.settle(&st, c, now, false, r)
}

// GiveBack returns tokens. To refuse a repeated call, it keeps a counter for the key once: a bucket
// of one token whose refill takes as long as keep.
func (s *Store) GiveBack(_ context.Context, once counter.Once, keep time.Duration, returns []counter.Return) error {
	if recorded := slices.ContainsFunc(returns, func(r counter.Return) bool { return r.Recorded }); once != (counter.Once{}) && !recorded {
		keep = min(max(keep.Truncate(time.Millisecond), 0)+time.Millisecond, 366*24*time.Hour)
		p, err := counter.NewPolicy("once", counter.Limit{Count: 1, Window: keep})
		if err != nil {
			return err
		}
		c := counter.Charge{Counter: counter.Counter{Policy: p, Subject: once[:]}, N: 1}
		var r counter.Result
		// Mark the key as used first. If a crash follows, tokens are lost; in the other order, a
		// repeated call could return them twice.
		if s.takeOne(&c, &r); !r.Allowed {
			return counter.ErrUsed
		}
	}
	decided, used := false, false
	for i := range returns {
		r := &returns[i]
		if used && !isSlots(r.Policy) {
			continue
		}
		if had := s.giveBack(r); r.Recorded && !decided {
			decided, used = true, !had
		}
	}
	if used {
		return counter.ErrUsed
	}
	return nil
}

// Reset removes counters and their holds, so that the next check finds them untouched.
func (s *Store) Reset(_ context.Context, counters []counter.Counter) error {
	for i := range counters {
		h := s.hash(&counters[i])
		g := s.table.lock(h)
		s.table.forget(g, h)
		s.table.unlock(g)
	}
	return nil
}

// Stats describes how full a [Store] is.
type Stats struct {
	Counters int    // counters in memory
	Bytes    int64  // memory that the counters take
	Evicted  uint64 // counters evicted for lack of memory before they were full again
}

// Bytes returns the memory that counters take now.
func (s *Store) Bytes() int64 { return s.table.pageUse.Load() + s.table.besideUse.Load() }

// Stats walks the whole table, locking one segment at a time.
func (s *Store) Stats() Stats {
	st := Stats{Bytes: s.Bytes(), Evicted: s.table.evicted.Load()}
	s.table.each(func(g *segment) {
		for _, b := range g.beside {
			if b.log != nil || b.slots { // the table's cells, counted below, include counters that have records
				st.Counters++
			}
		}
		for _, n := range g.counts {
			st.Counters += int(n)
		}
	})
	return st
}
