package weir

import (
	"errors"
	"time"

	"github.com/weirhq/weir/counter"
)

func (l *Limiter) tellHeld(h *held) {
	if l.holds == nil {
		return
	}
	for r := range h.slots() {
		l.tellSlot(r, true)
	}
	if h.reserves() {
		l.holds.Reservation("reserved")
	}
}

// tellSlot tells the observer that a slot is taken, or that it is released, if the return is one of a slot.
func (l *Limiter) tellSlot(r *counter.Return, taken bool) {
	if l.holds == nil || !r.InFlight() || r.Hold == nil {
		return
	}
	lasts := time.Duration(0)
	if taken {
		lasts = r.Hold.For
	}
	l.holds.Slots(&r.Counter, r.Hold.ID, r.N, lasts)
}

// tellEnded tells the observer that a request was finished, and what the store said to it.
func (l *Limiter) tellEnded(h *held, o Outcome, err error) {
	if l.holds == nil {
		return
	}
	used := errors.Is(err, counter.ErrUsed) // somebody has finished it before: its slots are free, and it was counted
	for r, local := range h.slots() {
		if err == nil || used || local { // else they end by themselves
			l.tellSlot(r, false)
		}
	}
	settled, unknown := false, false
	for i := range h.returns {
		if r := &h.returns[i]; r.amount != "" && !o.gives(r.statuses) {
			_, known := r.used(o)
			settled, unknown = true, unknown || !known
		}
	}
	switch {
	case !h.reserves() || used:
	case err != nil:
		l.holds.Reservation("failed")
	case unknown:
		l.holds.Reservation("unknown")
	case settled:
		l.holds.Reservation("settled")
	default:
		l.holds.Reservation("given_back")
	}
}
