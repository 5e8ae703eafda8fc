package memstore

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/weirhq/weir"
)

// holdList is the holds of one counter, in the order of their ends. The zero value has none. It is not safe for concurrent use.
type holdList struct {
	ends map[weir.Once]int64
	list []holding // sorted by end and id; those that aren't in ends are dead, and the last one isn't
	head int       // those before it are dead
	sum  int64

	// seen is when a hold was last made. kept and returns are the longest lifetimes so far: of holds that stay taken at their
	// end, and of holds that go back then. Slots use none of them.
	seen, kept, returns int64
}

type holding struct {
	id       weir.Once
	end      int64 // µs
	n, slot  int64
	giveBack bool
	returned bool // its time was over, and what it stood for went back
	dead     bool
}

// maxExpired is how many holds may end in one act, so that none takes long. The rest end in the next.
const maxExpired = 128

// len is how many there are.
func (h *holdList) len() int { return len(h.ends) }

// size is the memory that they take, in bytes, about.
func (h *holdList) size() int { return 72*cap(h.list) + 56*len(h.ends) + 64 }

// has reports whether a hold is there, and what it stands for hasn't gone back.
func (h *holdList) has(id weir.Once) bool {
	i := h.find(id)
	return i >= 0 && !h.list[i].returned
}

func (h *holdList) search(end int64, id weir.Once) int {
	return sort.Search(len(h.list), func(i int) bool {
		e := &h.list[i]
		return e.end > end || e.end == end && bytes.Compare(e.id[:], id[:]) >= 0
	})
}

// find is where a live hold stands in the list, or -1.
func (h *holdList) find(id weir.Once) int {
	end, ok := h.ends[id]
	if !ok {
		return -1
	}
	i := h.search(end, id)
	for h.list[i].dead { // an older one of the same id and end
		i++
	}
	return i
}

func (h *holdList) add(e holding) {
	if h.ends == nil {
		h.ends = map[weir.Once]int64{}
	}
	h.ends[e.id] = e.end
	h.sum += e.n
	i := h.search(e.end, e.id)
	h.list = slices.Insert(h.list, i, e)
	h.head = min(h.head, i)
}

// remove ends a hold, and returns it. It stays in the list until half of that is dead.
func (h *holdList) remove(id weir.Once) (e holding, ok bool) {
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

// compact drops what is dead, and the memory that it took where that is most of it.
func (h *holdList) compact() {
	h.head = 0
	h.list = slices.DeleteFunc(h.list, func(e holding) bool { return e.dead })
	if cap(h.list) <= 4*len(h.list)+16 {
		return
	}
	h.list = slices.Clone(h.list)
	ends := make(map[weir.Once]int64, len(h.ends))
	maps.Copy(ends, h.ends)
	h.ends = ends
}

// first is the hold that ends first, and last the one that ends last, or nil.
func (h *holdList) first() *holding {
	for ; h.head < len(h.list); h.head++ {
		if e := &h.list[h.head]; !e.dead {
			return e
		}
	}
	return nil
}

func (h *holdList) last() *holding {
	if len(h.list) == 0 {
		return nil
	}
	return &h.list[len(h.list)-1]
}

// hold adds a hold on n tokens that were debited in the given slot. One that is there stays as it is; a slot is renewed.
func (h *holdList) hold(p *weir.Policy, of *weir.Hold, now, n, slot int64) {
	if p.Limit.Algorithm == weir.Concurrency || !h.has(of.ID) {
		h.put(of, now, n, slot)
	}
}

// put adds a hold, or makes one that is there last from now on.
func (h *holdList) put(of *weir.Hold, now, n, slot int64) {
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

// anchor shortens holds that last too long because the clock has stepped back. A slot ends within the limit's window from now, and
// any other hold within the longest lifetime of its kind. If the counter's window lies in the future, anchor moves the window to
// now, and the holds that were debited in it. It returns the state.
func (h *holdList) anchor(p *weir.Policy, s weir.State, now int64) weir.State {
	latest, moved := now+p.Limit.Window.Microseconds(), s
	switch a := p.Limit.Algorithm; {
	case a == weir.Concurrency && h.lastEnd() <= latest || a != weir.Concurrency && now >= h.seen:
		return s
	case s.Time > now && (a == weir.FixedWindow || a == weir.SlidingCounter):
		moved = p.Return(s, now, 0, 0)
	}
	h.seen = now
	h.compact()
	for i := range h.list {
		e := &h.list[i]
		switch {
		case p.Limit.Algorithm == weir.Concurrency:
		case e.returned:
			latest = now + weir.RecordTime.Microseconds()
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

// forget resets the lifetimes once there are no holds. It writes only if there is something to reset, since counters without holds
// share one empty list.
func (h *holdList) forget() {
	if len(h.ends) == 0 && h.seen|h.kept|h.returns != 0 {
		h.seen, h.kept, h.returns = 0, 0, 0
	}
}

// lastEnd is when the last hold ends, µs, or 0 if there is none.
func (h *holdList) lastEnd() int64 {
	if e := h.last(); e != nil {
		return e.end
	}
	return 0
}

// expire ends the holds whose time is over, 128 at most, and returns the state with what goes back into it.
func (h *holdList) expire(p *weir.Policy, s weir.State, now int64) weir.State {
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
		if old.giveBack && !old.returned && p.Limit.Algorithm != weir.Concurrency {
			s = p.Return(s, now, old.n, old.slot)
			old.returned, old.dead = true, false
			old.end += weir.RecordTime.Microseconds()
			h.add(old)
		}
	}
	return s
}

// free releases n slots, of those that end first, for who can't name the hold that it ends. A hold of more slots than that
// keeps the rest. It ends 128 holds at most.
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

// drop forgets the n holds that end first, and gives nothing back: for a store that has no memory for them.
func (h *holdList) drop(n int) {
	for e := h.first(); n > 0 && e != nil; e = h.first() {
		h.remove(e.id)
		n--
	}
}

// settle ends a hold: a slot is free again, or a debit of Return.N becomes one of Return.Used. If the record isn't there, nothing
// goes back: what it stood for may never have been taken, or be lost with the store's memory.
func (h *holdList) settle(p *weir.Policy, s weir.State, now int64, r *weir.Return) weir.State {
	n, slot := h.end(r)
	switch {
	case p.Limit.Algorithm == weir.Concurrency:
	case n > 0:
		return p.Return(s, now, n, slot)
	case n < 0:
		return p.Overdraw(s, now, -n)
	}
	return s
}

// settleLog is settle for a log, of which nothing is taken beyond Return.N.
func (h *holdList) settleLog(p *weir.Policy, l *weir.Log, now int64, r *weir.Return) {
	if n, slot := h.end(r); n > 0 {
		p.ReturnLog(l, now, n, slot)
	}
}

// end ends the hold of a return: n tokens go back into the slot, or, below zero, -n more are taken.
func (h *holdList) end(r *weir.Return) (n, slot int64) {
	defer h.forget()
	switch e, ok := h.remove(r.Hold.ID); {
	case !ok:
		return min(r.N-r.Used, 0), 0
	case e.returned:
		return -r.Used, 0
	default:
		// The record says what was taken, and when: a repeated check may have asked for more, or in another window.
		return min(r.N, e.n) - r.Used, e.slot
	}
}

// fits reports whether n slots are free at the given moment, for a hold that isn't there yet.
func (h *holdList) fits(p *weir.Policy, n int64) bool { return n <= p.Limit.Count-h.sum }

// report describes slots as [weir.Policy.Report] does a state. When a slot will be released nobody knows: RetryAfter is when
// the first one ends unless it is renewed.
func (h *holdList) report(p *weir.Policy, now, n int64, v weir.Verdict) weir.Result {
	r := weir.Result{Allowed: v != weir.Refused, Remaining: max(0, p.Limit.Count-h.sum), Slot: now}
	if e := h.last(); e != nil {
		r.ResetAfter = time.Duration(max(0, e.end-now)) * time.Microsecond
	}
	if v == weir.Refused {
		r.RetryAfter = weir.Never
		if e := h.first(); n <= p.Limit.Count && e != nil {
			r.RetryAfter = time.Duration(max(1, e.end-now)) * time.Microsecond
		}
	}
	return r
}

// each calls f with every hold whose record stands for tokens, those that end first before the others, until it returns
// false: n tokens that were debited in the given slot, which of a Concurrency limit is when they were taken, and when the
// hold ends, both µs. F must not change the holds.
func (h *holdList) each(f func(id weir.Once, n, slot, end int64) bool) {
	for i := h.head; i < len(h.list); i++ {
		if e := &h.list[i]; !e.dead && !e.returned && !f(e.id, e.n, e.slot, e.end) {
			return
		}
	}
}
