// Package budget reports when a client's budget runs low: once at 50 %, once at 80 %, and once when it is used up. If the
// budget refuses a request before it is used up, because the request costs more than what is left, that is reported once,
// too.
//
// A budget is a limit on an amount, or a limit per calendar day, week or month. It must count in fixed windows, because
// only those have an end before which the budget can run out. A [Watcher] observes every decision. It writes each event to
// the log and, if there is a [Webhook], sends it there.
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
		return false // what a region has left doesn't say what all regions have used
	}
	return p.Limit.Algorithm == weir.FixedWindow && (p.Amount != "" || p.Limit.Calendar.Unit != counter.NoUnit)
}

func reached(used, limit counter.Amount) (n int) {
	for n < len(Thresholds) && 100*used >= counter.Amount(Thresholds[n])*limit {
		n++
	}
	return n
}

// Use is how much of a budget is used in a window.
type Use struct {
	Used, Limit counter.Amount
	// Start and End are the bounds of the window.
	Start, End time.Time
}

// UseOf returns how much of a budget is used after a check. Now is when the check was decided, by the clock that nodes
// share. The limit must be [Watched] and must have been counted.
func UseOf(l *weir.LimitStatus, now time.Time) Use {
	p := l.Policy
	u := Use{Limit: p.Limit.Amount()}
	u.Used = u.Limit - l.Left()
	// Now may already be in the next window. The window that counts is the one in which the check was decided, which ends
	// in ResetAfter. Half a window before that end is inside it, even if now is a bit late.
	u.Start, u.End = p.Window(now.Add(l.ResetAfter - p.Limit.Window/2))
	return u
}

// RunsOut returns when the budget is used up if it continues at its average pace since the window began. ok is false if the
// budget lasts to the end of the window, if nothing is used, or if all of it is.
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
