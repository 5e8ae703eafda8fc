package memstore

import (
	"context"
	"time"

	"github.com/weirhq/weir"
)

// Slots calls each with the slots of a Concurrency limit that are taken, those that end first before the others, and with at
// most as many as most says: which hold they belong to, how many they are, since when they are taken, and when they end
// unless they are renewed. Of other limits there are none.
func (s *Store) Slots(_ context.Context, c *weir.Counter, most int, each func(id weir.Once, n int64, since, ends time.Time)) error {
	type slot struct {
		id          weir.Once
		n           int64
		since, ends int64
	}
	var all []slot // what each does takes its time, and the lock mustn't be held for it
	s.eachSlot(c, func(id weir.Once, n, since, ends int64) bool {
		if len(all) < most {
			all = append(all, slot{id, n, since, ends})
		}
		return len(all) < most
	})
	for _, sl := range all {
		each(sl.id, sl.n, time.UnixMicro(sl.since), time.UnixMicro(sl.ends))
	}
	return nil
}

// Slot is how many slots of a Concurrency limit a hold has taken: 0 if it isn't there, or has ended.
func (s *Store) Slot(_ context.Context, c *weir.Counter, id weir.Once) (has int64, err error) {
	s.eachSlot(c, func(of weir.Once, n, _, _ int64) bool {
		if of == id {
			has = n
		}
		return of != id
	})
	return has, nil
}

// eachSlot calls f, with the segment locked, for the slots that haven't ended.
func (s *Store) eachSlot(c *weir.Counter, f func(id weir.Once, n, since, ends int64) bool) {
	if !isSlots(c.Policy) {
		return
	}
	h := s.hash(c)
	g := s.table.lock(h)
	defer s.table.unlock(g)
	now := s.time()
	g.holdsOf(h).each(func(id weir.Once, n, since, ends int64) bool {
		return ends <= now || f(id, n, since, min(ends, now+c.Policy.Limit.Window.Microseconds()))
	})
}
