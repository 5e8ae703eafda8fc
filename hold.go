package weir

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/weirhq/weir/counter"
)

// repeatTime is how long a check that may be repeated is charged once, if it has no receipt.
const repeatTime = time.Minute

// hold gives charges the holds that they need: slots, reservations, and names of checks that may be repeated.
func (m *match) hold(req *Request) {
	id, repeat := req.Repeat, repeatTime
	if req.Receipt && id != (counter.Once{}) {
		for i := range m.charges {
			repeat = max(repeat, refundable(m.charges[i].Policy)) // with the record, a refund would be lost
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
		case req.Repeat == (counter.Once{}) || len(c.Policy.Parts) > 0: // a split limit has no one place for it
			continue
		}
		if id == (counter.Once{}) {
			binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
			binary.NativeEndian.PutUint64(id[8:], rand.Uint64()|1)
		}
		c.Hold, c.Returnable, m.holds = &counter.Hold{ID: id, For: lasts, GiveBack: back}, true, true
	}
}
