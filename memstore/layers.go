package memstore

import (
	"cmp"
	"slices"

	"github.com/weirhq/weir"
)

// step is one charge of several, between looking and taking.
type step struct {
	hash    uint64
	i       int   // in charges
	n       int64 // how many tokens it needs
	log     bool
	again   bool // it names the counter of the step before, whose debit is for both
	keeps   bool // it looks at its counter's holds
	there   bool // its hold is there already, and nothing is taken
	expired bool // holds have ended, and old isn't what is stored
	fits    bool
	hold    *weir.Hold
	segment *segment
	slot    *slot // locked, or nil if there is none
	old     weir.State
	state   weir.State
}

// takeAll looks at every counter first and takes only if all fit. It holds the
// locks of all segments involved, taken in the order of the ranges they own, so
// that two calls never wait for each other, and after them those of the slots.
func (s *Store) takeAll(charges []weir.Charge, results []weir.Result) {
	var few [8]step
	steps := few[:0]
	for i := range charges {
		c := &charges[i]
		isLog := c.Policy.Limit.Algorithm == weir.SlidingLog
		steps = append(steps, step{hash: s.hash(&c.Counter), i: i, n: c.N, log: isLog, keeps: keeps(c), hold: c.Hold})
	}
	slices.SortFunc(steps, func(a, b step) int {
		if a.hash != b.hash {
			return cmp.Compare(a.hash, b.hash)
		}
		// One counter, named twice: the first debits it for all, so that must be one that enforces, if any does.
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
			st.slot = steps[j-1].slot // it is locked already
		} else if !st.log && !isSlots(charges[st.i].Policy) {
			st.slot = st.segment.layout.find(st.hash)
		}
	}
	now := s.time() // with all locked: see update
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
	// First the counters that are there: adding others moves slots, which must be free for that.
	for j := range steps {
		if st := &steps[j]; st.slot != nil {
			s.settle(st, &charges[st.i], now, refused, &results[st.i])
		}
	}
	for j := range steps {
		if st := &steps[j]; st.slot == nil {
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
			continue // it is reported
		}
		v, state := verdict(st.fits, st.taken(c, refused)), st.state
		if v == weir.Fits {
			state = st.old
		}
		c.Policy.ReportTo(&results[st.i], state, now, st.n, v)
		results[st.i].Again = st.there
	}
}

// taken reports whether a charge that fits is debited, or one that is booked.
func (st *step) taken(c *weir.Charge, refused bool) bool {
	return st.fits && !c.Peek && (!refused || c.Policy.Book)
}

// falseFirst compares flags.
func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// addUp finds the charges that name one counter, and has each ask for the tokens of all of them. What they leave behind is the
// first one's hold.
func addUp(steps []step, charges []weir.Charge) {
	for from := 0; from < len(steps); {
		most := int64(2 * weir.MaxTokens)
		if charges[steps[from].i].Policy.Limit.Decimal {
			most = 2 * weir.MaxAmount
		}
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

// find reads a counter, and has the holds end whose time is over.
func (s *Store) find(st *step, c *weir.Charge, now int64) {
	if st.slot != nil {
		st.old = st.slot.decode(c.Policy, s.table.epoch)
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

// look finds out whether a charge fits, and changes nothing.
func (s *Store) look(st *step, c *weir.Charge, now int64) {
	switch {
	case st.there:
		st.state, st.fits = st.old, true
	case st.log:
		l, ok := st.segment.logs[st.hash]
		if !ok {
			l = &logged{}
		}
		st.fits = c.Policy.FitsLog(&l.Log, now, st.n)
	case isSlots(c.Policy):
		st.fits = st.segment.holdsOf(st.hash).fits(c.Policy, st.n)
	default:
		st.state, st.fits = try(c, st.old, now, st.n)
	}
}

// settle stores what a charge leaves behind: the debit and its hold, or for a refusal the
// clock that was brought back. Logs and slots are reported here, since they can't be copied out.
func (s *Store) settle(st *step, c *weir.Charge, now int64, refused bool, r *weir.Result) {
	taken := st.taken(c, refused)
	slot := now
	switch {
	case st.log:
		*r = s.table.log(st, c.Policy, now, taken)
	case isSlots(c.Policy):
	case !st.again:
		s.write(st, c, now, taken)
		if taken && st.hold != nil {
			c.Policy.ReportTo(r, st.state, now, st.n, weir.Taken)
			slot = r.Slot
		}
	}
	if st.keeps && !st.again {
		if taken && st.hold != nil {
			s.table.hold(st.segment, st.hash, c.Policy, st.hold, now, st.n, slot)
		}
		s.table.rebookHolds(st.segment, st.hash, now)
	}
	if isSlots(c.Policy) {
		*r = st.segment.holdsOf(st.hash).report(c.Policy, now, st.n, verdict(st.fits, taken))
	}
}

// write stores a counter's state, if it has changed, and unlocks its slot.
func (s *Store) write(st *step, c *weir.Charge, now int64, taken bool) {
	state, changed := st.old, st.expired
	if taken || !st.fits {
		state, changed = st.state, true
	}
	sl := st.slot
	if sl == nil {
		if state == (weir.State{}) { // a refusal may count
			return
		}
		sl = s.table.add(st.segment, st.hash, now)
	}
	if changed {
		sl.when, sl.level = encode(c.Policy, state, s.table.epoch)
	}
	sl.unlock(st.hash)
}
