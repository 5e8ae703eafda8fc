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

// holdList keeps the holds of one counter, in the order in which they end. The zero value is empty.
// It is not safe for concurrent use.
type holdList struct {
	ends map[counter.Once]int64
	list []holding // sorted by end and id; entries missing from ends are dead, and the last entry never is
	head int       // entries before this index are dead
	sum  int64

	// seen is when a hold was last added. kept and returns are the longest lifetimes so far: kept
	// of holds whose tokens stay taken at the end, returns of holds whose tokens go back then.
	// Slots use none of these.
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

// maxExpired bounds how many holds one call ends, so that no call takes long. Later calls end the
// rest.
const maxExpired = 128

// len returns the number of holds.
func (h *holdList) len() int { return len(h.ends) }

// size returns the approximate memory of the list, in bytes.
func (h *holdList) size() int { return 72*cap(h.list) + 56*len(h.ends) + 64 }

// has reports whether a hold exists whose tokens haven't gone back.
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
	for h.list[i].dead { // an older hold with the same id and end
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

// hold records n tokens that were debited at the given slot. A reservation that already exists
// stays as it is; slots are renewed.
func (h *holdList) hold(p *counter.Policy, of *counter.Hold, now, n, slot int64) {
	if p.Limit.Algorithm == counter.Concurrency || !h.has(of.ID) {
		h.put(of, now, n, slot)
	}
}

// put adds a hold. If it already exists, its lifetime starts anew.
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

// anchor shortens holds that last too long because the clock has stepped back. A slot ends within
// the limit's window from now, any other hold within the longest lifetime of its kind. If the
// counter's window lies in the future, anchor moves the window, and the holds debited in it, to
// now. It returns the new state.
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

// forget resets the lifetimes once there are no holds. It writes only if there is something to
// reset, because all counters without holds share one empty list.
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

// expire ends up to maxExpired holds whose time is over, and returns the state with their tokens
// given back.
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

// free releases n slots, those that end first, for a caller that can't name its hold. A hold of
// more slots keeps the rest. It ends at most maxExpired holds.
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

// drop removes the n holds that end first and gives nothing back, because the store is out of
// memory.
func (h *holdList) drop(n int) {
	for e := h.first(); n > 0 && e != nil; e = h.first() {
		h.remove(e.id)
		n--
	}
}

// settle ends a hold: it frees a slot, or changes a debit of Return.N into one of Return.Used. If
// there is no record, nothing goes back: the tokens may never have been taken, or the record was
// evicted.
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

// settleLog is settle for a sliding log, which never takes more than Return.N.
func (h *holdList) settleLog(p *counter.Policy, l *counter.Log, now int64, r *counter.Return) {
	if n, slot := h.end(r); n > 0 {
		p.ReturnLog(l, now, n, slot)
	}
}

// end ends the hold that a return names. It returns the tokens to give back into the slot; if
// negative, -n more are to be taken.
func (h *holdList) end(r *counter.Return) (n, slot int64) {
	defer h.forget()
	switch e, ok := h.remove(r.Hold.ID); {
	case !ok:
		return min(r.N-r.Used, 0), 0
	case e.returned:
		return -r.Used, 0
	default:
		// Trust the record for how much was taken, and when: a repeated check may have asked for
		// more, or in another window.
		return min(r.N, e.n) - r.Used, e.slot
	}
}

// fits reports whether n slots are free for a new hold.
func (h *holdList) fits(p *counter.Policy, n int64) bool { return n <= p.Limit.Count-h.sum }

// report does for slots what [counter.Policy.Report] does for a state. A release can't be predicted,
// so RetryAfter is when the first slot ends unless it is renewed.
func (h *holdList) report(p *counter.Policy, now, n int64, v counter.Verdict) counter.Result {
	first := int64(0)
	if e := h.first(); e != nil {
		first = e.end
	}
	return p.ReportSum(now, n, v, h.sum, h.lastEnd(), first)
}

// all yields every hold whose tokens are still taken, in the order in which they end. The slot of a concurrency limit's hold is
// the time at which it was taken.
func (h *holdList) all() iter.Seq[*holding] {
	return func(yield func(*holding) bool) {
		for i := h.head; i < len(h.list); i++ {
			if e := &h.list[i]; !e.dead && !e.returned && !yield(e) {
				return
			}
		}
	}
}
