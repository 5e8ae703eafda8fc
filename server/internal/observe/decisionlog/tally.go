package decisionlog

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/observer"
)

// maxTallies is the maximum number of tallies. Beyond it, rules share a tally with the rule "other".
const maxTallies = 1000

type tallyKey struct {
	rule    string
	reason  weir.Reason
	allowed bool
}

// tally counts the decisions with one rule and one reason in one second.
type tally struct {
	left    atomic.Int64  // how many more lines may be written
	leftOut atomic.Uint64 // decisions that got no line
	untold  uint64        // decisions without a line that aren't in any summary line yet; only the writer uses it
}

// tally returns this second's tally for a rule and a reason. If there is none, it creates the tally. It returns with mu
// locked for reading, so that the second doesn't end before the decision is counted.
func (l *Log) tally(k tallyKey) *tally {
	for {
		l.mu.RLock()
		t, full := l.tallies[k], len(l.tallies) >= maxTallies
		if t == nil && full {
			k.rule = "other" // there is at most one such tally for each reason
			t = l.tallies[k]
		}
		if t != nil {
			return t
		}
		l.mu.RUnlock()
		k.rule = strings.Clone(k.rule) // the name may be part of a large text, so copy it
		t = &tally{}
		t.left.Store(perReason)
		l.mu.Lock()
		if l.tallies[k] == nil && (len(l.tallies) < maxTallies || k.rule == "other") {
			l.tallies[k] = t
		}
		l.mu.Unlock()
	}
}

// endSecond begins a new second, in which each rule may have lines again. For each tally with decisions that were left
// out, it writes a line with their number, until a line can't be written.
func (l *Log) endSecond() {
	l.mu.Lock()
	ended := l.tallies
	l.tallies = map[tallyKey]*tally{}
	for _, t := range ended {
		l.leftOut += t.leftOut.Load()
	}
	l.mu.Unlock()
	l.left.Store(perSecond)
	writable := true
	for k, t := range ended {
		n := t.untold + t.leftOut.Load()
		if n == 0 {
			continue
		}
		writable = writable && l.write(&leftOutLine{text(time.Now()), n, observer.Outcome(k.allowed), observer.Reason(k.reason), k.rule})
		if !writable {
			l.tally(k).untold += n
			l.mu.RUnlock()
		}
	}
}
