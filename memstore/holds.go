package memstore

import (
	"context"
	"time"

	"github.com/weirhq/weir/counter"
)

// keeps reports whether a charge needs its counter's holds, and thus the segment's lock.
func keeps(c *counter.Charge) bool {
	return c.Hold != nil || c.Policy.GivesBack || isSlots(c.Policy)
}

func isSlots(p *counter.Policy) bool { return p.Limit.Algorithm == counter.Concurrency }

// giveBack carries out one return, and reports whether the hold that it ends was recorded.
func (s *Store) giveBack(back *counter.Return) (recorded bool) {
	p, h := back.Policy, s.hash(&back.Counter)
	isLog := p.Limit.Algorithm == counter.SlidingLog
	g := s.table.lock(h)
	defer s.table.unlock(g)
	var cell *cell
	if !isLog && !isSlots(p) {
		cell = g.layout.find(h)
	}
	now := s.time() // read after locking, so not before the time of an earlier check
	var old counter.State
	if cell != nil {
		old = cell.decode(p, s.table.epoch)
	}
	hs, state := g.holdsOf(h), old
	if back.Hold != nil || p.GivesBack || isSlots(p) {
		state = hs.expire(p, old, now)
		recorded = back.Hold != nil && hs.find(back.Hold.ID) >= 0
	}
	switch {
	case back.Recorded && !recorded:
	case back.Hold == nil && isSlots(p):
		hs.free(back.N)
	case back.Hold == nil && isLog:
		p.ReturnLog(g.logOf(h), now, back.N, back.Slot)
	case back.Hold == nil:
		state = p.Return(state, now, back.N, back.Slot) // does nothing to an evicted counter, which counts as full
	case isLog:
		hs.settleLog(p, g.logOf(h), now, back)
	default:
		state = hs.settle(p, state, now, back)
	}
	s.table.account(g, h, p, now)
	if cell == nil && state != (counter.State{}) {
		cell = s.table.add(g, h, now) // more was used than reserved, and the counter had been evicted
		old = counter.State{}
	}
	if cell == nil {
		return recorded
	}
	if state != old {
		cell.encode(p, state, s.table.epoch)
	}
	cell.unlock(h)
	return recorded
}

// Slots calls each for up to most holds of a concurrency limit, in the order in which they end. The arguments of each are the
// hold's ID, how many slots it has, when it took them, and when they end unless they are renewed. For other algorithms, Slots
// does nothing.
func (s *Store) Slots(_ context.Context, c *counter.Counter, most int, each func(id counter.Once, n int64, since, ends time.Time)) error {
	for _, e := range s.slots(c, most, func(*holding) bool { return true }) {
		each(e.id, e.n, time.UnixMicro(e.slot), time.UnixMicro(e.end))
	}
	return nil
}

// Slot returns how many slots of a concurrency limit a hold has: zero if the hold doesn't exist or
// has ended.
func (s *Store) Slot(_ context.Context, c *counter.Counter, id counter.Once) (has int64, err error) {
	for _, e := range s.slots(c, 1, func(e *holding) bool { return e.id == id }) {
		has = e.n
	}
	return has, nil
}

// slots returns copies of up to most wanted holds of a concurrency limit that haven't ended, in the order in which they end.
func (s *Store) slots(c *counter.Counter, most int, wanted func(*holding) bool) (all []holding) {
	if !isSlots(c.Policy) {
		return nil
	}
	h := s.hash(c)
	g := s.table.lock(h)
	defer s.table.unlock(g)
	now := s.time()
	for e := range g.holdsOf(h).all() {
		if len(all) >= most {
			break
		}
		if e.end > now && wanted(e) {
			all = append(all, *e)
			all[len(all)-1].end = min(e.end, now+c.Policy.Limit.Window.Microseconds())
		}
	}
	return all
}
