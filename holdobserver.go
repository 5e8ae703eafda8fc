package weir

import (
	"errors"
	"time"

	"github.com/weirhq/weir/counter"
)

// HoldObserver is told of what requests hold at this limiter: slots, and amounts that they have reserved. It is called in
// the goroutine of whoever checks, renews, releases or finishes: it must be quick, and keep nothing of the counter.
type HoldObserver interface {
	// Slots is told that n slots of a Concurrency limit were taken or renewed, for as long as lasts; or, if that is 0, that
	// they were released. The id tells the slots of one request from those of others.
	Slots(c *counter.Counter, id counter.Once, n int64, lasts time.Duration)
	// Reservation is told "reserved" when a request has reserved amounts, and then how that ended, once for all of its amounts:
	//   - settled: it was finished, and all that it really took is known.
	//   - unknown: it was finished, and an amount stays as it was reserved, since nobody knows what was used.
	//   - given_back: it was finished, and everything went back.
	//   - failed: the store couldn't be reached to finish it. It may be tried again.
	Reservation(state string)
}

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
