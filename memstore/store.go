// Package memstore keeps counters in this process: a compact hash table without
// pointers, bounded in memory, that answers in a fraction of a microsecond and
// allocates nothing. It is the store of a single node, and the reference that
// other stores are held against.
//
// A counter takes 24 bytes, 30 to 37 with the free room around it. It is found by a 63-bit hash
// under a secret of the process, which no client can aim at. At ten million counters, one shares
// its hash with another by a chance of one in 10^11.
//
// Logs, slots in use and the records of reservations lie beside the table, within the same bound.
package memstore

import (
	"context"
	"hash/maphash"
	"math/bits"
	"slices"
	"time"

	"github.com/weirhq/weir"
)

var _ weir.Store = (*Store)(nil)

// Store is an in-process [weir.Store]. Make one with [New].
type Store struct {
	table table
	clock clock
	now   func() time.Time
	seed  maphash.Seed
}

// Options of a Store. The zero value is useful.
type Options struct {
	// MemoryCap is the most memory that counters may take, in bytes. At the cap, counters closest
	// to untouched are evicted first. 0 means 256 MiB.
	MemoryCap int64
	// Now replaces the clock, in tests that step it backwards. Nil means the real one.
	Now func() time.Time
}

// DefaultMemoryCap is the cap of a Store whose options name none.
const DefaultMemoryCap = 256 << 20

// New makes an empty store.
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

// hash is never 0, which marks an empty slot, and leaves the busy bit free.
func (s *Store) hash(c *weir.Counter) uint64 {
	hi, lo := bits.Mul64(maphash.Bytes(s.seed, c.Subject)^c.Policy.ID, 0x9e3779b97f4a7c15)
	return max(2, (hi^lo)&^busy)
}

// Take decides the charges, all or nothing.
func (s *Store) Take(_ context.Context, charges []weir.Charge, results []weir.Result) {
	if len(charges) == 1 && !keeps(&charges[0]) {
		s.takeOne(&charges[0], &results[0])
		return
	}
	s.takeAll(charges, results)
}

func (s *Store) takeOne(c *weir.Charge, r *weir.Result) {
	now := s.time()
	p, h := c.Policy, s.hash(&c.Counter)
	if p.Limit.Algorithm == weir.SlidingLog {
		s.takeLog(c, r, h)
		return
	}
	sl := s.table.lookup(h).find(h)
	if sl == nil {
		s.takeNew(now, c, r, h)
		return
	}
	s.update(sl, h, c, now, r)
}

// update charges a counter whose slot is locked, and unlocks it.
func (s *Store) update(sl *slot, h uint64, c *weir.Charge, now int64, r *weir.Result) {
	old := sl.decode(c.Policy, s.table.epoch)
	if old.Time > now {
		// Others came first since this check looked at the clock, and the time up to then is counted already: to bring the
		// counter back would count it twice. If it still lies in the future, the clock did run backwards.
		now = s.time()
	}
	state, ok := try(c, old, now, c.N)
	if ok && c.Peek {
		state = old
	}
	if state != old {
		sl.when, sl.level = encode(c.Policy, state, s.table.epoch)
	}
	sl.unlock(h)
	c.Policy.ReportTo(r, state, now, c.N, verdict(ok, !c.Peek)) // with the slot free: it only needs the copy
}

// takeNew charges a counter that seems not to be there.
func (s *Store) takeNew(now int64, c *weir.Charge, r *weir.Result, h uint64) {
	g := s.table.lock(h)
	if sl := g.layout.find(h); sl != nil { // it was only being moved, or another check has added it
		s.table.unlock(g)
		s.update(sl, h, c, now, r)
		return
	}
	state, ok := try(c, weir.State{}, now, c.N)
	if !c.Peek && (ok || state != (weir.State{})) { // a refusal may count
		sl := s.table.add(g, h, now)
		sl.when, sl.level = encode(c.Policy, state, s.table.epoch)
		sl.unlock(h)
	} else {
		state = weir.State{}
	}
	s.table.unlock(g)
	c.Policy.ReportTo(r, state, now, c.N, verdict(ok, !c.Peek))
}

// try is what a charge does to a counter, if the other charges let it.
func try(c *weir.Charge, s weir.State, now, n int64) (weir.State, bool) {
	if c.Peek {
		return c.Policy.Try(s, now, n)
	}
	return c.Policy.Debit(s, now, n)
}

func verdict(fits, taken bool) weir.Verdict {
	switch {
	case !fits:
		return weir.Refused
	case taken:
		return weir.Taken
	}
	return weir.Fits
}

func (s *Store) takeLog(c *weir.Charge, r *weir.Result, h uint64) {
	g := s.table.lock(h)
	defer s.table.unlock(g)
	now := s.time() // with the log locked: see update
	st := step{hash: h, n: c.N, log: true, segment: g}
	s.look(&st, c, now)
	s.settle(&st, c, now, false, r)
}

// GiveBack returns tokens. What once names is kept as a counter of its own: a
// bucket of one token that takes as long as keep to refill.
func (s *Store) GiveBack(_ context.Context, once weir.Once, keep time.Duration, returns []weir.Return) error {
	if recorded := slices.ContainsFunc(returns, func(r weir.Return) bool { return r.Recorded }); once != (weir.Once{}) && !recorded {
		keep = min(max(keep.Truncate(time.Millisecond), 0)+time.Millisecond, 366*24*time.Hour)
		p, err := weir.NewPolicy("once", weir.Limit{Count: 1, Window: keep})
		if err != nil {
			return err
		}
		c := weir.Charge{Counter: weir.Counter{Policy: p, Subject: once[:]}, N: 1}
		var r weir.Result
		// First mark it used: a return that is lost strands tokens, one made twice would mint them.
		if s.takeOne(&c, &r); !r.Allowed {
			return weir.ErrUsed
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
		return weir.ErrUsed
	}
	return nil
}

// giveBack carries out a return, and reports whether there was a record of its hold.
func (s *Store) giveBack(back *weir.Return) (recorded bool) {
	p, h := back.Policy, s.hash(&back.Counter)
	if back.Hold != nil || p.GivesBack || isSlots(p) {
		return s.giveBackHeld(back, h)
	}
	if p.Limit.Algorithm == weir.SlidingLog {
		g := s.table.lock(h)
		defer s.table.unlock(g)
		if l := g.logs[h]; l != nil {
			p.ReturnLog(&l.Log, s.time(), back.N, back.Slot)
			s.table.rebook(g, h, l, p)
		}
		return false
	}
	sl := s.table.acquire(h)
	if sl == nil {
		return false // evicted: it is full
	}
	old := sl.decode(p, s.table.epoch)
	if state := p.Return(old, s.time(), back.N, back.Slot); state != old {
		sl.when, sl.level = encode(p, state, s.table.epoch)
	}
	sl.unlock(h)
	return false
}

// Reset makes counters untouched, and drops their holds.
func (s *Store) Reset(_ context.Context, counters []weir.Counter) error {
	for i := range counters {
		h := s.hash(&counters[i])
		g := s.table.lock(h)
		s.table.forget(g, h)
		s.table.unlock(g)
	}
	return nil
}

// Stats describes how full the store is.
type Stats struct {
	Counters int    // that are kept
	Bytes    int64  // that they take
	Evicted  uint64 // counters evicted before they were full, for want of memory
}

// Bytes is what counters take now.
func (s *Store) Bytes() int64 { return s.table.pageUse.Load() + s.table.logUse.Load() }

// Stats walks the whole table, a segment at a time.
func (s *Store) Stats() Stats {
	st := Stats{Bytes: s.Bytes(), Evicted: s.table.evicted.Load()}
	s.table.each(func(g *segment) {
		st.Counters += len(g.logs)
		for _, hs := range g.holds {
			if hs.slots { // others have a counter beside them
				st.Counters++
			}
		}
		for _, n := range g.counts {
			st.Counters += int(n)
		}
	})
	return st
}
