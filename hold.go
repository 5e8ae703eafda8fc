package weir

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"time"
)

// Hold is what a charge leaves behind beside its debit: a slot of a Concurrency limit until it is released, or the record
// of a debit that will be settled. A charge whose hold is there already takes nothing more: it renews a slot, and repeats
// a check without being charged twice.
type Hold struct {
	ID Once
	// For is how long it lasts. A slot that isn't renewed is free again then. A record that isn't settled is forgotten.
	For time.Duration
	// GiveBack returns what a record stands for at its end, unless it was settled. Such a record is kept for RecordTime beyond
	// that, so that a late settlement books all that was used.
	GiveBack bool
}

// repeatTime is how long a check that may be repeated is charged once.
const repeatTime = time.Minute

// Holds are those of one counter, in the order of their ends. The zero value has none. It is not safe for concurrent use.
type Holds struct {
	ends map[Once]int64
	list []holding // sorted by end and id; those that aren't in ends are dead, and the last one isn't
	head int       // those before it are dead
	sum  int64
}

type holding struct {
	id       Once
	end      int64 // µs
	n, slot  int64
	giveBack bool
	returned bool // its time was over, and what it stood for went back
	dead     bool
}

// maxExpired is how many holds may end in one act, so that none takes long. The rest end in the next.
const maxExpired = 128

// Len is how many there are.
func (h *Holds) Len() int { return len(h.ends) }

// Size is the memory that they take, in bytes, about.
func (h *Holds) Size() int { return 72*cap(h.list) + 56*len(h.ends) + 64 }

// Sum is how many tokens they hold.
func (h *Holds) Sum() int64 { return h.sum }

// Has reports whether a hold is there, and what it stands for hasn't gone back.
func (h *Holds) Has(id Once) bool {
	i := h.find(id)
	return i >= 0 && !h.list[i].returned
}

func (h *Holds) search(end int64, id Once) int {
	return sort.Search(len(h.list), func(i int) bool {
		e := &h.list[i]
		return e.end > end || e.end == end && bytes.Compare(e.id[:], id[:]) >= 0
	})
}

// find is where a live hold stands in the list, or -1.
func (h *Holds) find(id Once) int {
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

func (h *Holds) add(e holding) {
	if h.ends == nil {
		h.ends = map[Once]int64{}
	}
	h.ends[e.id] = e.end
	h.sum += e.n
	i := h.search(e.end, e.id)
	h.list = slices.Insert(h.list, i, e)
	h.head = min(h.head, i)
}

// remove ends a hold, and returns it. It stays in the list until half of that is dead.
func (h *Holds) remove(id Once) (e holding, ok bool) {
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
func (h *Holds) compact() {
	h.head = 0
	h.list = slices.DeleteFunc(h.list, func(e holding) bool { return e.dead })
	if cap(h.list) <= 4*len(h.list)+16 {
		return
	}
	h.list = slices.Clone(h.list)
	ends := make(map[Once]int64, len(h.ends))
	maps.Copy(ends, h.ends)
	h.ends = ends
}

// first is the hold that ends first, and last the one that ends last, or nil.
func (h *Holds) first() *holding {
	for ; h.head < len(h.list); h.head++ {
		if e := &h.list[h.head]; !e.dead {
			return e
		}
	}
	return nil
}

func (h *Holds) last() *holding {
	if len(h.list) == 0 {
		return nil
	}
	return &h.list[len(h.list)-1]
}

// Hold adds a hold on n tokens that were debited in the given slot. One that is there stays as it is; a slot is renewed.
func (p *Policy) Hold(h *Holds, of *Hold, now, n, slot int64) {
	if p.Limit.Algorithm == Concurrency || !h.Has(of.ID) {
		h.put(of, now, n, slot)
	}
}

// put adds a hold, or makes one that is there last from now on.
func (h *Holds) put(of *Hold, now, n, slot int64) {
	e := holding{id: of.ID, n: n, slot: slot, giveBack: of.GiveBack}
	if old, ok := h.remove(of.ID); ok && !old.returned {
		e = old
		e.dead = false
	}
	e.end = now + of.For.Microseconds()
	h.add(e)
}

// Last is when the last hold ends, µs, or 0 if there is none.
func (h *Holds) Last() int64 {
	if e := h.last(); e != nil {
		return e.end
	}
	return 0
}

// Expire ends the holds whose time is over, 128 at most, and returns the state with what goes back into it.
func (p *Policy) Expire(h *Holds, s State, now int64) State {
	for range maxExpired {
		e := h.first()
		if e == nil || e.end > now {
			break
		}
		old, _ := h.remove(e.id)
		if old.giveBack && !old.returned && p.Limit.Algorithm != Concurrency {
			s = p.Return(s, now, old.n, old.slot)
			old.returned, old.dead = true, false
			old.end += RecordTime.Microseconds()
			h.add(old)
		}
	}
	return s
}

// Free releases n slots, of those that end first, for who can't name the hold that it ends. A hold of more slots than that
// keeps the rest. It ends 128 holds at most.
func (h *Holds) Free(n int64) {
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

// Drop forgets the n holds that end first, and gives nothing back: for a store that has no memory for them.
func (h *Holds) Drop(n int) {
	for e := h.first(); n > 0 && e != nil; e = h.first() {
		h.remove(e.id)
		n--
	}
}

// Settle ends a hold: a slot is free again, or a debit of Return.N becomes one of Return.Used. If the record isn't there, nothing
// goes back: what it stood for may never have been taken, or be lost with the store's memory.
func (p *Policy) Settle(h *Holds, s State, now int64, r *Return) State {
	n, slot := h.end(r)
	switch {
	case p.Limit.Algorithm == Concurrency:
	case n > 0:
		return p.Return(s, now, n, slot)
	case n < 0:
		return p.book(s, now, -n)
	}
	return s
}

// SettleLog is Settle for a log, of which nothing is taken beyond Return.N.
func (p *Policy) SettleLog(h *Holds, l *Log, now int64, r *Return) {
	if n, slot := h.end(r); n > 0 {
		p.ReturnLog(l, now, n, slot)
	}
}

// end ends the hold of a return: n tokens go back into the slot, or, below zero, -n more are taken.
func (h *Holds) end(r *Return) (n, slot int64) {
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

// FitsSlots reports whether n slots are free at the given moment, for a hold that isn't there yet.
func (p *Policy) FitsSlots(h *Holds, n int64) bool { return n <= p.Limit.Count-h.sum }

// ReportSlots describes slots as [Policy.Report] does a state. When a slot will be released nobody knows: RetryAfter is when
// the first one ends unless it is renewed.
func (p *Policy) ReportSlots(h *Holds, now, n int64, v Verdict) Result {
	r := Result{Allowed: v != Refused, Remaining: max(0, p.Limit.Count-h.sum), Slot: now}
	if e := h.last(); e != nil {
		r.ResetAfter = micros(max(0, e.end-now))
	}
	if v == Refused {
		r.RetryAfter = Never
		if e := h.first(); n <= p.Limit.Count && e != nil {
			r.RetryAfter = micros(max(1, e.end-now))
		}
	}
	return r
}

// hold gives charges the holds that they need: slots, reservations, and names of checks that may be repeated.
func (m *match) hold(req *Request) {
	id := req.Repeat
	for i := range m.charges {
		c := &m.charges[i]
		lasts, back := repeatTime, false
		switch {
		case c.Peek:
			continue
		case c.Policy.Limit.Algorithm == Concurrency:
			lasts = c.Policy.Limit.Window
		case req.Reserve > 0 && c.Policy.Amount != "":
			if lasts = RecordTime; c.Policy.GivesBack {
				lasts, back = min(req.Reserve, RecordTime), true
			}
		case req.Repeat == (Once{}) || len(c.Policy.Parts) > 0: // a split limit has no one place for it
			continue
		}
		if id == (Once{}) {
			binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
			binary.NativeEndian.PutUint64(id[8:], rand.Uint64()|1)
		}
		c.Hold, c.Returnable, m.holds = &Hold{ID: id, For: lasts, GiveBack: back}, true, true
	}
}
