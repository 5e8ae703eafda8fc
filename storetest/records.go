package storetest

import (
	"bytes"

	"github.com/weirhq/weir/counter"
)

// records are the holds of one counter by ID. They do the same as holds in memstore, in a simpler way.
type records struct {
	all map[counter.Once]record
	// seen is when a record was last added. kept and returns are the longest lifetimes so far: kept of records whose tokens stay
	// taken when the record ends, and returns of those whose tokens go back then.
	seen, kept, returns int64
}

type record struct {
	end, n, slot       int64
	giveBack, returned bool
}

// first returns the ID of the record that ends first, if there is any.
func (rs *records) first() (name counter.Once, ok bool) {
	for id, r := range rs.all {
		if old := rs.all[name]; !ok || r.end < old.end || r.end == old.end && bytes.Compare(id[:], name[:]) < 0 {
			name, ok = id, true
		}
	}
	return name, ok
}

func (rs *records) sum() (n int64) {
	for _, r := range rs.all {
		n += r.n
	}
	return n
}

// expire ends up to 128 records whose time is over, and gives back the tokens of those with giveBack.
func (rs *records) expire(p *counter.Policy, s counter.State, now int64) counter.State {
	s = rs.anchor(p, s, now)
	defer rs.forget()
	for range 128 {
		id, ok := rs.first()
		r := rs.all[id]
		switch {
		case !ok || r.end > now:
			return s
		case !r.giveBack || r.returned || isSlots(p):
			delete(rs.all, id)
		default:
			s = p.Return(s, now, r.n, r.slot)
			r.returned = true
			r.end += counter.RecordTime.Microseconds()
			rs.all[id] = r
		}
	}
	return s
}

// anchor shortens records that would last too long after the clock was set back. A window that lies in the future moves to now,
// and so do its records.
func (rs *records) anchor(p *counter.Policy, s counter.State, now int64) counter.State {
	slots := isSlots(p)
	if !slots && now >= rs.seen {
		return s
	}
	moved := s
	if a := p.Limit.Algorithm; s.Time > now && (a == counter.FixedWindow || a == counter.SlidingCounter) {
		moved = p.Return(s, now, 0, 0)
	}
	rs.seen = now
	for id, r := range rs.all {
		length := rs.kept
		switch {
		case slots:
			length = p.Limit.Window.Microseconds()
		case r.returned:
			length = counter.RecordTime.Microseconds()
		case r.giveBack:
			length = rs.returns
		}
		r.end = min(r.end, now+length)
		if moved != s && r.slot == s.Time {
			r.slot = moved.Time
		}
		rs.all[id] = r
	}
	return moved
}

func (rs *records) forget() {
	if len(rs.all) == 0 {
		rs.seen, rs.kept, rs.returns = 0, 0, 0
	}
}

func (rs *records) put(p *counter.Policy, h *counter.Hold, now, n, slot int64) {
	if r, ok := rs.all[h.ID]; ok && !r.returned {
		if isSlots(p) {
			r.end = now + h.For.Microseconds()
			rs.all[h.ID] = r
		}
		return
	}
	rs.seen = now
	if h.GiveBack {
		rs.returns = max(rs.returns, h.For.Microseconds())
	} else {
		rs.kept = max(rs.kept, h.For.Microseconds())
	}
	rs.all[h.ID] = record{end: now + h.For.Microseconds(), n: n, slot: slot, giveBack: h.GiveBack}
}

// free releases the n slots that end first.
func (rs *records) free(n int64) {
	for range 128 {
		id, ok := rs.first()
		r := rs.all[id]
		switch {
		case !ok || n <= 0:
			return
		case r.n > n:
			r.n -= n
			rs.all[id] = r
			return
		}
		n -= r.n
		delete(rs.all, id)
	}
}

// settle ends a record. It returns how many tokens go back, and into which slot. If n is negative, -n more tokens are taken.
func (rs *records) settle(back *counter.Return) (n, slot int64) {
	r, ok := rs.all[back.Hold.ID]
	delete(rs.all, back.Hold.ID)
	rs.forget()
	switch {
	case !ok:
		return min(0, back.N-back.Used), 0
	case r.returned:
		return -back.Used, 0
	}
	return min(back.N, r.n) - back.Used, r.slot
}

// report returns the result of a charge to a concurrency limit.
func (rs *records) report(p *counter.Policy, now, n int64, v counter.Verdict) counter.Result {
	id, _ := rs.first()
	last := int64(0)
	for _, h := range rs.all {
		last = max(last, h.end)
	}
	return p.ReportSum(now, n, v, rs.sum(), last, rs.all[id].end)
}
