package storetest

import (
	"bytes"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/ledger"
)

// records are the holds of one counter, by name. They do what memstore does, the plain way.
type records map[weir.Once]record

type record struct {
	end, n, slot       int64
	giveBack, returned bool
}

// first is the name of the record that ends first, if there is any.
func (rs records) first() (name weir.Once, ok bool) {
	for id, r := range rs {
		if old := rs[name]; !ok || r.end < old.end || r.end == old.end && bytes.Compare(id[:], name[:]) < 0 {
			name, ok = id, true
		}
	}
	return name, ok
}

func (rs records) sum() (n int64) {
	for _, r := range rs {
		n += r.n
	}
	return n
}

// expire has the records end whose time is over, some at a time, and gives back what they say.
func (rs records) expire(p *weir.Policy, s weir.State, now int64) weir.State {
	for range 128 {
		id, ok := rs.first()
		r := rs[id]
		switch {
		case !ok || r.end > now:
			return s
		case !r.giveBack || r.returned || p.Limit.Algorithm == weir.Concurrency:
			delete(rs, id)
		default:
			s = p.Return(s, now, r.n, r.slot)
			r.returned = true
			r.end += weir.RecordTime.Microseconds()
			rs[id] = r
		}
	}
	return s
}

func (rs records) put(c weir.Counter, h *weir.Hold, now, n, slot int64) {
	if r, ok := rs[h.ID]; ok && !r.returned {
		if isSlots(c) {
			r.end = now + h.For.Microseconds()
			rs[h.ID] = r
		}
		return
	}
	rs[h.ID] = record{end: now + h.For.Microseconds(), n: n, slot: slot, giveBack: h.GiveBack}
}

// free releases slots, of those that end first.
func (rs records) free(n int64) {
	for range 128 {
		id, ok := rs.first()
		r := rs[id]
		switch {
		case !ok || n <= 0:
			return
		case r.n > n:
			r.n -= n
			rs[id] = r
			return
		}
		n -= r.n
		delete(rs, id)
	}
}

// settle ends a record, and says how much goes back, and where; or, below zero, how much more is taken.
func (rs records) settle(back *weir.Return) (n, slot int64) {
	r, ok := rs[back.Hold.ID]
	delete(rs, back.Hold.ID)
	switch {
	case !ok:
		return min(0, back.N-back.Used), 0
	case r.returned:
		return -back.Used, 0
	}
	return min(back.N, r.n) - back.Used, r.slot
}

// report describes slots.
func (rs records) report(p *weir.Policy, now, n int64, v weir.Verdict) weir.Result {
	r := weir.Result{Allowed: v != weir.Refused, Remaining: max(0, p.Limit.Count-rs.sum()), Slot: now}
	last := now
	for _, h := range rs {
		last = max(last, h.end)
	}
	r.ResetAfter = time.Duration(last-now) * time.Microsecond
	if v == weir.Refused {
		r.RetryAfter = weir.Never
		if id, ok := rs.first(); ok && n <= p.Limit.Count {
			r.RetryAfter = time.Duration(max(1, rs[id].end-now)) * time.Microsecond
		}
	}
	return r
}

func (m *Model) recordsOf(c weir.Counter) records {
	rs := m.records[keyOf(c)]
	if rs == nil {
		rs = records{}
		m.records[keyOf(c)] = rs
	}
	return rs
}

// expire has the holds of a counter end whose time is over. Only who may change them looks.
func (m *Model) expire(now int64, c weir.Counter, hold *weir.Hold) {
	if hold == nil && !c.Policy.GivesBack && !isSlots(c) {
		return
	}
	a := m.accounts[keyOf(c)]
	a.State = m.recordsOf(c).expire(c.Policy, a.State, now)
	m.accounts[keyOf(c)] = a
}

// there: the hold that a charge would leave is there already.
func (m *Model) there(c *ledger.Ask) bool {
	if c.Hold == nil {
		return false
	}
	r, ok := m.recordsOf(c.Counter)[c.Hold.ID]
	return ok && !r.returned
}

// settle ends a hold.
func (m *Model) settle(now int64, r weir.Return) {
	n, slot := m.recordsOf(r.Counter).settle(&r)
	switch {
	case isSlots(r.Counter):
	case n > 0:
		m.refund(now, r.Counter, n, slot)
	case n < 0 && !isLog(r.Counter):
		books := *r.Policy // which takes what doesn't fit, too
		books.Book = true
		a := m.accounts[keyOf(r.Counter)]
		a.State, _ = books.Debit(a.State, now, -n)
		m.accounts[keyOf(r.Counter)] = a
	}
}
