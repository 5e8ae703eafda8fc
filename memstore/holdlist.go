package memstore

import (
	"bytes"
	"cmp"
	"iter"
	"maps"
	"slices"
	"sort"

	"github.com/weirhq/weir/counter"
)

// holdList keeps the holds of one counter, in the order in which they end. The zero value is empty. It is not safe for
// concurrent use.
type holdList struct {
	ends map[counter.Once]int64
	list []holding // sorted by end and id; dead entries are missing from ends, and the last entry is never dead
	head int       // entries before this index are dead
	sum  int64

	// seen is when a hold was last added. Slots don't use the next two fields, which are the longest lifetimes so far: kept for
	// holds whose tokens stay taken when the hold ends, and returns for holds whose tokens go back then.
	seen, kept, returns int64
}

type holding struct {
	id       counter.Once
	end      int64 // µs
	n, slot  int64
	giveBack bool
	returned bool // the hold has expired, and its tokens went back
	dead     bool
}

// maxExpired is the largest number of holds that one call ends, so that no call takes long. Later calls end the rest.
const maxExpired = 128

// len returns the number of holds.
func (h *holdList) len() int { return len(h.ends) }

// size returns the approximate memory of the list, in bytes.
func (h *holdList) size() int { return 72*cap(h.list) + 56*len(h.ends) + 64 }

// has reports whether the hold exists and its tokens haven't gone back.
func (h *holdList) has(id counter.Once) bool {
	i := h.find(id)
	return i >= 0 && !h.list[i].returned
}

func (h *holdList) search(end int64, id counter.Once) int {
	return sort.Search(len(h.list), func(i int) bool {
		e := &h.list[i]
		return e.end > end || e.end == end && bytes.Compare(e.id[:], id[:]) >= 0
	})
}

// find returns the index of a live hold, or -1.
func (h *holdList) find(id counter.Once) int {
	end, ok := h.ends[id]
	if !ok {
		return -1
	}
	i := h.search(end, id)
	for h.list[i].dead { // dead: an older hold with the same id and end
		i++
	}
	return i
}

func (h *holdList) add(e holding) {
	if h.ends == nil {
		h.ends = map[counter.Once]int64{}
	}
	h.ends[e.id] = e.end
	h.sum += e.n
	i := h.search(e.end, e.id)
	h.list = slices.Insert(h.list, i, e)
	h.head = min(h.head, i)
}

// remove ends a hold, and returns it. The entry stays in the list until half of the list is dead.
func (h *holdList) remove(id counter.Once) (e holding, ok bool) {
	i := h.find(id)
	if i < 0 {
		return e, false
	}
	e = h.list[i]
	h.list[i].dead = true
	delete(h.ends, id)
	h.sum -= e.n
	for len(h.list) > 0 && h.list[len(h.list)-1].dead {
		h.list = h.list[:len(h.list)-1]
	}
	if len(h.list) > 2*len(h.ends)+8 || cap(h.list) > 4*len(h.ends)+64 {
		h.compact()
	}
	return e, true
}

// compact removes dead entries, and frees memory if most of it is unused.
func (h *holdList) compact() {
	h.head = 0
	h.list = slices.DeleteFunc(h.list, func(e holding) bool { return e.dead })
	if cap(h.list) <= 4*len(h.list)+16 {
		return
	}
	h.list = slices.Clone(h.list)
	ends := make(map[counter.Once]int64, len(h.ends))
	maps.Copy(ends, h.ends)
	h.ends = ends
}

// first returns the hold that ends first, or nil.
func (h *holdList) first() *holding {
	for ; h.head < len(h.list); h.head++ {
		if e := &h.list[h.head]; !e.dead {
			return e
		}
	}
	return nil
}

// hold records n tokens that were debited at the given slot. If the hold exists already, a slot is renewed, and a reservation
// stays as it is.
func (h *holdList) hold(p *counter.Policy, of *counter.Hold, now, n, slot int64) {
	if p.Limit.Algorithm == counter.Concurrency || !h.has(of.ID) {
		h.put(of, now, n, slot)
	}
}

// put adds a hold. If the hold already exists, its lifetime starts again.
func (h *holdList) put(of *counter.Hold, now, n, slot int64) {
	e := holding{id: of.ID, n: n, slot: slot, giveBack: of.GiveBack}
	if old, ok := h.remove(of.ID); ok && !old.returned {
		e = old
		e.dead = false
	}
	e.end = now + of.For.Microseconds()
	h.seen = now
	if of.GiveBack {
		h.returns = max(h.returns, of.For.Microseconds())
	} else {
		h.kept = max(h.kept, of.For.Microseconds())
	}
	h.add(e)
}

// anchor shortens holds that would last too long because the clock was set back. A slot may last for the limit's window from
// now, and any other hold for the longest lifetime of its kind so far. If the counter's window lies in the future, anchor moves
// the window, and the holds debited in it, to now. It returns the new state.
func (h *holdList) anchor(p *counter.Policy, s counter.State, now int64) counter.State {
	latest, moved := now+p.Limit.Window.Microseconds(), s
	switch a := p.Limit.Algorithm; {
	case a == counter.Concurrency && h.lastEnd() <= latest || a != counter.Concurrency && now >= h.seen:
		return s
	case s.Time > now && (a == counter.FixedWindow || a == counter.SlidingCounter):
		moved = p.Return(s, now, 0, 0)
	}
	h.seen = now
	h.compact()
	for i := range h.list {
		e := &h.list[i]
		switch {
		case p.Limit.Algorithm == counter.Concurrency:
		case e.returned:
			latest = now + counter.RecordTime.Microseconds()
		case e.giveBack:
			latest = now + h.returns
		default:
			latest = now + h.kept
		}
		e.end = min(e.end, latest)
		h.ends[e.id] = e.end
		if moved != s && e.slot == s.Time {
			e.slot = moved.Time
		}
	}
	slices.SortFunc(h.list, func(a, b holding) int { return cmp.Or(cmp.Compare(a.end, b.end), bytes.Compare(a.id[:], b.id[:])) })
	return moved
}

// forget resets the lifetimes if there are no holds. It writes only if there is something to reset, because all counters
// without holds share one empty list.
func (h *holdList) forget() {
	if len(h.ends) == 0 && h.seen|h.kept|h.returns != 0 {
		h.seen, h.kept, h.returns = 0, 0, 0
	}
}

// lastEnd returns when the last hold ends, in µs, or 0 if there is none.
func (h *holdList) lastEnd() int64 {
	if len(h.list) == 0 {
		return 0
	}
	return h.list[len(h.list)-1].end
}

// expire ends up to maxExpired holds whose time is over. It gives back the tokens of those with giveBack, and returns the new
// state.
func (h *holdList) expire(p *counter.Policy, s counter.State, now int64) counter.State {
	if len(h.ends) == 0 {
		return s
	}
	defer h.forget()
	s = h.anchor(p, s, now)
	for range maxExpired {
		e := h.first()
		if e == nil || e.end > now {
			break
		}
		old, _ := h.remove(e.id)
		if old.giveBack && !old.returned && p.Limit.Algorithm != counter.Concurrency {
			s = p.Return(s, now, old.n, old.slot)
			old.returned, old.dead = true, false
			old.end += counter.RecordTime.Microseconds()
			h.add(old)
		}
	}
	return s
}

// free releases the n slots that end first, for a caller that can't name its hold. A hold with more slots than that keeps the
// rest. One call ends at most maxExpired holds.
func (h *holdList) free(n int64) {
	for range maxExpired {
		e := h.first()
		if e == nil || n <= 0 {
			return
		}
		if e.n > n {
			e.n -= n
			h.sum -= n
			return
		}
		n -= e.n
		h.remove(e.id)
	}
}

// drop removes the n holds that end first, because the store is out of memory. It gives back none of their tokens.
func (h *holdList) drop(n int) {
	for e := h.first(); n > 0 && e != nil; e = h.first() {
		h.remove(e.id)
		n--
	}
}

// settle ends a hold: it frees a slot, or changes a debit of Return.N into one of Return.Used. If there is no record, nothing
// goes back: the tokens may never have been taken, or the record was evicted.
func (h *holdList) settle(p *counter.Policy, s counter.State, now int64, r *counter.Return) counter.State {
	n, slot := h.end(r)
	switch {
	case p.Limit.Algorithm == counter.Concurrency:
	case n > 0:
		return p.Return(s, now, n, slot)
	case n < 0:
		return p.Overdraw(s, now, -n)
	}
	return s
}

// settleLog is settle for a sliding log, which never charges more than Return.N.
func (h *holdList) settleLog(p *counter.Policy, l *counter.Log, now int64, r *counter.Return) {
	if n, slot := h.end(r); n > 0 {
		p.ReturnLog(l, now, n, slot)
	}
}

// end ends the hold of a return. It returns how many tokens to give back into the slot; if n is negative, -n more tokens must
// be taken.
func (h *holdList) end(r *counter.Return) (n, slot int64) {
	defer h.forget()
	switch e, ok := h.remove(r.Hold.ID); {
	case !ok:
		return min(r.N-r.Used, 0), 0
	case e.returned:
		return -r.Used, 0
	default:
		// Trust the record on how much was taken, and when: a repeated check may have asked for more, or in another window.
		return min(r.N, e.n) - r.Used, e.slot
	}
}

// fits reports whether n slots are free for a new hold.
func (h *holdList) fits(p *counter.Policy, n int64) bool { return n <= p.Limit.Count-h.sum }

// report describes slots, as [counter.Policy.Report] describes a state. Since releases can't be predicted, RetryAfter is the
// time until the first slot ends if it isn't renewed.
func (h *holdList) report(p *counter.Policy, now, n int64, v counter.Verdict) counter.Result {
	first := int64(0)
	if e := h.first(); e != nil {
		first = e.end
	}
	return p.ReportSum(now, n, v, h.sum, h.lastEnd(), first)
}

// all yields every hold whose tokens are still taken, in the order in which they end. For a concurrency limit, holding.slot is
// the time at which the hold took its slots.
func (h *holdList) all() iter.Seq[*holding] {
	return func(yield func(*holding) bool) {
		for i := h.head; i < len(h.list); i++ {
			if e := &h.list[i]; !e.dead && !e.returned && !yield(e) {
				return
			}
		}
	}
}
