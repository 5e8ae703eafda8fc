// Package budget tells people when a budget runs low: once when half of it is used, once at 80 %, and once when it is used up. If it
// refuses a request before it is used up, it tells them that once, too.
//
// A budget is a limit on an amount, or one over a day, a week or a month of the calendar, that counts in fixed windows: only
// those have an end by which something can run out. A [Watcher] is told of every decision. What it tells is a line of the log
// and, if there is a [Webhook], a request to that.
package budget

import (
	"math/bits"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// Thresholds are the percentages of a budget that are told of.
var Thresholds = [...]int{50, 80, 100}

// Watched reports whether a limit is a budget.
func Watched(p *counter.Policy) bool {
	if p.Global && !p.Travels {
		return false // what a region has left says nothing of what all have used
	}
	return p.Limit.Algorithm == weir.FixedWindow && (p.Amount != "" || p.Limit.Calendar.Unit != counter.NoUnit)
}

// reached is how many of the thresholds have been reached.
func reached(used, limit counter.Amount) (n int) {
	for n < len(Thresholds) && 100*used >= counter.Amount(Thresholds[n])*limit {
		n++
	}
	return n
}

// Use is what of a budget is used in a window.
type Use struct {
	Used, Limit counter.Amount
	// Start and End are the window's.
	Start, End time.Time
}

// UseOf reads how a budget stands after a check that was decided at the given moment, by the clock that nodes share. The
// limit is one that is [Watched] and was counted.
func UseOf(l *weir.LimitStatus, now time.Time) Use {
	p := l.Policy
	u := Use{Limit: p.Limit.Amount()}
	u.Used = u.Limit - l.Left()
	// Around an edge it may be another window already: what counts is the one that was decided in, which ends in
	// ResetAfter. From its end, half a window back is inside of it, however late this moment is.
	u.Start, u.End = p.Window(now.Add(l.ResetAfter - p.Limit.Window/2))
	return u
}

// RunsOut is when the budget is used up if it goes on at the pace that it had since the window began. There is no such time,
// and ok is false, if it lasts to the end of the window, if nothing is used, and if everything is.
func (u Use) RunsOut(now time.Time) (at time.Time, ok bool) {
	passed := now.Sub(u.Start)
	if u.Used <= 0 || u.Used >= u.Limit || passed <= 0 {
		return at, false
	}
	hi, lo := bits.Mul64(uint64(passed), uint64(u.Limit))
	if hi >= uint64(u.Used) {
		return at, false // in centuries
	}
	after, _ := bits.Div64(hi, lo, uint64(u.Used))
	if after >= uint64(u.End.Sub(u.Start)) {
		return at, false
	}
	return u.Start.Add(time.Duration(after)), true
}
