package weir

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/weirhq/weir/counter"
)

// repeatTime is how long checks with the same idempotency key are charged once. A receipt may extend it.
const repeatTime = time.Minute

// hold adds the holds that charges need for slots, reservations and idempotency keys.
func (m *match) hold(req *Request) {
	id, repeat := req.Repeat, repeatTime
	if req.Receipt && id != (counter.Once{}) {
		for i := range m.charges {
			repeat = max(repeat, refundable(m.charges[i].Policy)) // a refund needs the record
		}
	}
	for i := range m.charges {
		c := &m.charges[i]
		lasts, back := repeat, false
		switch {
		case c.Peek:
			continue
		case c.Policy.Limit.Algorithm == Concurrency:
			lasts = c.Policy.Limit.Window
		case req.Reserve > 0 && c.Policy.Amount != "":
			if lasts = counter.RecordTime; c.Policy.GivesBack {
				lasts, back = min(req.Reserve, counter.RecordTime), true
			}
		case req.Repeat == (counter.Once{}) || len(c.Policy.Parts) > 0: // no single counter could keep the record
			continue
		}
		if id == (counter.Once{}) {
			binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
			binary.NativeEndian.PutUint64(id[8:], rand.Uint64()|1)
		}
		c.Hold, c.Returnable, m.holds = &counter.Hold{ID: id, For: lasts, GiveBack: back}, true, true
	}
}

func (l *Limiter) tellHeld(h *held) {
	if l.opts.Holds == nil {
		return
	}
	for _, r := range h.slots() {
		l.tellSlot(&r.Return, true)
	}
	if h.reserves() {
		l.opts.Holds.Reservation("reserved")
	}
}

// tellSlot tells the observer that slots were taken or released. If the return isn't one of slots,
// it does nothing.
func (l *Limiter) tellSlot(r *counter.Return, taken bool) {
	if l.opts.Holds == nil || !r.InFlight() || r.Hold == nil {
		return
	}
	lasts := time.Duration(0)
	if taken {
		lasts = r.Hold.For
	}
	l.opts.Holds.Slots(&r.Counter, r.Hold.ID, r.N, lasts)
}

// tellEnded tells the observer that a request was finished. The error is that of the store.
func (l *Limiter) tellEnded(h *held, o Outcome, err error) {
	if l.opts.Holds == nil {
		return
	}
	used := errors.Is(err, counter.ErrUsed) // an earlier call has finished and reported it
	for _, r := range h.slots() {
		if err == nil || used || r.local { // otherwise the slots end when their time is over
			l.tellSlot(&r.Return, false)
		}
	}
	if !h.reserves() || used {
		return
	}
	state := "given_back"
	for i := range h.returns {
		if r := &h.returns[i]; r.amount != "" && !o.gives(r.statuses) {
			if _, known := r.used(o); !known {
				state = "unknown"
				break
			}
			state = "settled"
		}
	}
	if err != nil {
		state = "failed"
	}
	l.opts.Holds.Reservation(state)
}
