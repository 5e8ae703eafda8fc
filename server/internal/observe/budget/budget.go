// Package budget sends events when a client's budget runs low: one at 50 %, one at 80 %, and one when the budget is
// used up. If the budget refuses a request before it is used up, because the request costs more than what is left,
// there is one event for that, too.
//
// A budget is a limit on an amount, or a limit per calendar day, week or month. It must count in fixed windows, because
// only these have an end, before which the budget can run out. A [Watcher] observes every decision. It logs each event
// and, if there is a [Webhook], sends the event to it.
package budget

import (
	"math/bits"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// Thresholds are the percentages of a budget at which an event is sent.
var Thresholds = [...]int{50, 80, 100}

// Watched reports whether a limit is a budget.
func Watched(p *counter.Policy) bool {
	if p.Global && !p.Travels {
		return false // what is left in one region doesn't show what all regions have used
	}
	return p.Limit.Algorithm == weir.FixedWindow && (p.Amount != "" || p.Limit.Calendar.Unit != counter.NoUnit)
}

func reached(used, limit counter.Amount) (n int) {
	for n < len(Thresholds) && 100*used >= counter.Amount(Thresholds[n])*limit {
		n++
	}
	return n
}

// Use says how much of a budget is used in a window.
type Use struct {
	Used, Limit counter.Amount
	// Start and End are the bounds of the window.
	Start, End time.Time
}

// UseOf returns how much of a budget is used after a check. now is when the check was decided, by the clock that nodes
// share. The limit must be [Watched], and must have been counted.
func UseOf(l *weir.LimitStatus, now time.Time) Use {
	p := l.Policy
	u := Use{Limit: p.Limit.Amount()}
	u.Used = u.Limit - l.Left()
	// now may already be in the next window. What counts is the window in which the check was decided. It ends after
	// ResetAfter, so half a window earlier is inside it, even if now is a little late.
	u.Start, u.End = p.Window(now.Add(l.ResetAfter - p.Limit.Window/2))
	return u
}

// RunsOut returns when the budget will be used up if use continues at its average rate since the window began. ok is
// false if the budget lasts until the end of the window, if nothing is used, or if everything is.
func (u Use) RunsOut(now time.Time) (at time.Time, ok bool) {
	passed := now.Sub(u.Start)
	if u.Used <= 0 || u.Used >= u.Limit || passed <= 0 {
		return at, false
	}
	hi, lo := bits.Mul64(uint64(passed), uint64(u.Limit))
	if hi >= uint64(u.Used) {
		return at, false // the budget lasts for centuries
	}
	after, _ := bits.Div64(hi, lo, uint64(u.Used))
	if after >= uint64(u.End.Sub(u.Start)) {
		return at, false
	}
	return u.Start.Add(time.Duration(after)), true
}
