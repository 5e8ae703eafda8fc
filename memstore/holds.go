package memstore

import "github.com/weirhq/weir"

// held is what a counter's charges have left behind: the slots of a Concurrency limit, which has no state beside them, or
// the records of reservations and of checks that may be repeated. It lies in its segment, by the counter's hash as logs do.
type held struct {
	holdList
	slots bool
	last  int64 // when the last one ends
	bytes int64 // what was booked for it
}

// holdsBytes is what a counter's holds cost beside themselves, about: their place in the segment's map, and a map of their own.
const holdsBytes = 248

// nothing is what a counter has that has no holds. It is never written.
var nothing held

// keeps reports whether a charge has to look at its counter's holds, which takes the segment's lock.
func keeps(c *weir.Charge) bool {
	return c.Hold != nil || c.Policy.GivesBack || isSlots(c.Policy)
}

func isSlots(p *weir.Policy) bool { return p.Limit.Algorithm == weir.Concurrency }

// holdsOf are a counter's holds. Those of a counter without any aren't to be changed.
func (g *segment) holdsOf(h uint64) *held {
	if hs := g.holds[h]; hs != nil {
		return hs
	}
	return &nothing
}

// hold has a charge that was taken leave its hold behind, or renew it.
func (t *table) hold(g *segment, h uint64, p *weir.Policy, of *weir.Hold, now, n, slot int64) {
	hs := g.holds[h]
	if hs == nil {
		if g.holds == nil {
			g.holds = map[uint64]*held{}
		}
		hs = &held{slots: isSlots(p)}
		g.holds[h] = hs
	}
	hs.hold(p, of, now, n, slot)
}

// rebookHolds brings the memory of a counter's holds up to date, and drops what is empty.
func (t *table) rebookHolds(g *segment, h uint64, now int64) {
	hs := g.holds[h]
	switch {
	case hs == nil:
	case hs.len() == 0:
		t.dropHolds(g, h)
	default:
		t.resize(hs)
		if t.overLogs() {
			t.evictLogs(g, h, now)
		}
	}
}

func (t *table) resize(hs *held) {
	size := int64(hs.size()) + holdsBytes
	t.logUse.Add(size - hs.bytes)
	hs.bytes, hs.last = size, hs.lastEnd()
}

func (t *table) dropHolds(g *segment, h uint64) {
	if hs := g.holds[h]; hs != nil {
		t.logUse.Add(-hs.bytes)
		delete(g.holds, h)
	}
}

// halve forgets the older half of a counter's records, where they alone are too many for the cap. What they stand for doesn't
// come back, which mints nothing.
func (t *table) halve(g *segment, h uint64) {
	hs := g.holds[h]
	for hs != nil && !hs.slots && hs.len() > 1 && t.overLogs() {
		hs.drop((hs.len() + 1) / 2)
		t.resize(hs)
	}
}

// giveBackHeld is giveBack where the counter may have holds.
func (s *Store) giveBackHeld(back *weir.Return, h uint64) (recorded bool) {
	p := back.Policy
	g := s.table.lock(h)
	defer s.table.unlock(g)
	var sl *slot
	if p.Limit.Algorithm != weir.SlidingLog && !isSlots(p) {
		sl = g.layout.find(h)
	}
	now := s.time() // with all locked: see update
	var old weir.State
	if sl != nil {
		old = sl.decode(p, s.table.epoch)
	}
	hs := g.holdsOf(h)
	state := hs.expire(p, old, now)
	recorded = back.Hold != nil && hs.find(back.Hold.ID) >= 0
	switch l := g.logs[h]; {
	case back.Recorded && !recorded:
	case back.Hold == nil && isSlots(p):
		hs.free(back.N)
	case back.Hold == nil: // of a policy that gives back
		state = p.Return(state, now, back.N, back.Slot)
	case p.Limit.Algorithm != weir.SlidingLog:
		state = hs.settle(p, state, now, back)
	case l == nil:
		hs.settleLog(p, &weir.Log{}, now, back)
	default:
		hs.settleLog(p, &l.Log, now, back)
		s.table.rebook(g, h, l, p)
	}
	s.table.rebookHolds(g, h, now)
	if sl == nil && state != (weir.State{}) {
		sl = s.table.add(g, h, now) // more was used than was taken, and it had been evicted
		old = weir.State{}
	}
	if sl == nil {
		return recorded
	}
	if state != old {
		sl.when, sl.level = encode(p, state, s.table.epoch)
	}
	sl.unlock(h)
	return recorded
}
