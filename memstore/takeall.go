package memstore

import (
	"cmp"
	"slices"

	"github.com/weirhq/weir/counter"
)

// step is one of several charges, on its way from looking to taking.
type step struct {
	hash    uint64
	i       int   // index into charges
	n       int64 // tokens that it needs
	log     bool  // the counter is a sliding log
	again   bool  // the charge names the same counter as the step before, whose debit covers both
	keeps   bool  // the charge needs its counter's holds
	there   bool  // the charge's hold exists already, so nothing is taken
	expired bool  // holds have ended, so old differs from the stored state
	fits    bool
	hold    *counter.Hold
	segment *segment
	cell    *cell // locked, or nil if the counter doesn't exist
	old     counter.State
	state   counter.State
}

// takeAll looks at every counter first, and debits only if all charges fit. It locks the segments
// first, in the order of their hash ranges, so that two calls can't deadlock, and then the cells.
func (s *Store) takeAll(charges []counter.Charge, results []counter.Result) {
	var few [8]step
	steps := few[:0]
	for i := range charges {
		c := &charges[i]
		isLog := c.Policy.Limit.Algorithm == counter.SlidingLog
		steps = append(steps, step{hash: s.hash(&c.Counter), i: i, n: c.N, log: isLog, keeps: keeps(c), hold: c.Hold})
	}
	slices.SortFunc(steps, func(a, b step) int {
		if a.hash != b.hash {
			return cmp.Compare(a.hash, b.hash)
		}
		// If several charges name one counter, the first step debits it for all of them. So a
		// charge that isn't in shadow must come first.
		return cmp.Or(falseFirst(a.log, b.log), falseFirst(charges[a.i].Policy.Shadow, charges[b.i].Policy.Shadow), a.i-b.i)
	})
	addUp(steps, charges)

	var g *segment
	refused := false
	for j := range steps {
		st := &steps[j]
		if g == nil || !g.layout.owns(st.hash) {
			g = s.table.lock(st.hash)
		}
		st.segment = g
	}
	for j := range steps {
		st := &steps[j]
		if st.again {
			st.cell = steps[j-1].cell // already locked
		} else if !st.log && !isSlots(charges[st.i].Policy) {
			st.cell = st.segment.layout.find(st.hash)
		}
	}
	now := s.time() // read after locking, so not before the time of an earlier check
	for j := range steps {
		st := &steps[j]
		c := &charges[st.i]
		if st.again {
			st.old, st.there = steps[j-1].old, steps[j-1].there
		} else {
			s.find(st, c, now)
		}
		s.look(st, c, now)
		refused = refused || !st.fits && !c.Policy.Shadow
	}
	// Settle existing counters first: adding a counter moves cells, so these must be unlocked by then.
	for j := range steps {
		if st := &steps[j]; st.cell != nil {
			s.settle(st, &charges[st.i], now, refused, &results[st.i])
		}
	}
	for j := range steps {
		if st := &steps[j]; st.cell == nil {
			s.settle(st, &charges[st.i], now, refused, &results[st.i])
		}
	}
	for j := range steps {
		if j == len(steps)-1 || steps[j+1].segment != steps[j].segment {
			s.table.unlock(steps[j].segment)
		}
	}
	for j := range steps {
		st := &steps[j]
		c := &charges[st.i]
		if st.log || isSlots(c.Policy) {
			results[st.i].Again = st.there
			continue // settle has written the result
		}
		v, state := verdict(st.fits, st.taken(c, refused)), st.state
		if v == counter.Fits {
			state = st.old
		}
		c.Policy.ReportTo(&results[st.i], state, now, st.n, v)
		results[st.i].Again = st.there
	}
}

// taken reports whether a charge is debited. Charges of Book policies are debited even if another
// charge is refused.
func (st *step) taken(c *counter.Charge, refused bool) bool {
	return st.fits && !c.Peek && (!refused || c.Policy.Book)
}

// falseFirst orders false before true.
func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// addUp makes each charge to a counter ask for the sum of all charges to that counter. The hold of
// the first charge covers the whole sum.
func addUp(steps []step, charges []counter.Charge) {
	for from := 0; from < len(steps); {
		most := charges[steps[from].i].Policy.MaxCharge()
		to, n := from+1, steps[from].n
		for to < len(steps) && steps[to].hash == steps[from].hash && steps[to].log == steps[from].log {
			n = min(n+steps[to].n, most)
			to++
		}
		for j := from; j < to; j++ {
			steps[j].n, steps[j].again = n, j > from
		}
		from = to
	}
}

// find reads a counter's state, and ends its holds whose time is over.
func (s *Store) find(st *step, c *counter.Charge, now int64) {
	if st.cell != nil {
		st.old = st.cell.decode(c.Policy, s.table.epoch)
	}
	if !st.keeps {
		return
	}
	hs := st.segment.holdsOf(st.hash)
	was := st.old
	st.old = hs.expire(c.Policy, was, now)
	st.expired = st.old != was
	st.there = st.hold != nil && hs.has(st.hold.ID)
}

// look decides whether a charge fits, and debits nothing.
func (s *Store) look(st *step, c *counter.Charge, now int64) {
	switch {
	case st.there:
		st.state, st.fits = st.old, true
	case st.log:
		st.fits = c.Policy.FitsLog(st.segment.logOf(st.hash), now, st.n)
	case isSlots(c.Policy):
		st.fits = st.segment.holdsOf(st.hash).fits(c.Policy, st.n)
	default:
		st.state, st.fits = try(c, st.old, now, st.n)
	}
}

// settle stores the outcome of a charge: its debit and its hold, or after a refusal the corrected
// time. It also writes the results for logs and slots, which must be read under the lock.
func (s *Store) settle(st *step, c *counter.Charge, now int64, refused bool, r *counter.Result) {
	taken := st.taken(c, refused)
	slot := now
	switch {
	case st.log:
		*r = s.table.log(st, c.Policy, now, taken)
	case isSlots(c.Policy):
	case !st.again:
		s.write(st, c, now, taken)
		if taken && st.hold != nil {
			c.Policy.ReportTo(r, st.state, now, st.n, counter.Taken)
			slot = r.Slot
		}
	}
	if st.keeps && !st.again {
		if taken && st.hold != nil {
			s.table.hold(st.segment, st.hash, c.Policy, st.hold, now, st.n, slot)
		}
		s.table.account(st.segment, st.hash, c.Policy, now)
	}
	if isSlots(c.Policy) {
		*r = st.segment.holdsOf(st.hash).report(c.Policy, now, st.n, verdict(st.fits, taken))
	}
}

// write stores a counter's state if it has changed, and unlocks the cell.
func (s *Store) write(st *step, c *counter.Charge, now int64, taken bool) {
	state, changed := st.old, st.expired
	if taken || !st.fits {
		state, changed = st.state, true
	}
	cell := st.cell
	if cell == nil {
		if state == (counter.State{}) { // a refusal may change the state, see CountRefused
			return
		}
		cell = s.table.add(st.segment, st.hash, now)
	}
	if changed {
		cell.encode(c.Policy, state, s.table.epoch)
	}
	cell.unlock(st.hash)
}
