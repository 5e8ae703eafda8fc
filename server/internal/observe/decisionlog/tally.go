package decisionlog

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/observer"
)

// maxTallies is how many tallies there are. Beyond it, rules share a tally with the name "other".
const maxTallies = 1000

type tallyKey struct {
	rule    string
	reason  weir.Reason
	allowed bool
}

// tally counts the decisions of a rule with one reason in one second.
type tally struct {
	left    atomic.Int64  // how many more lines may be written
	leftOut atomic.Uint64 // decisions that got no line
	untold  uint64        // decisions without a line that no summary line has counted yet; only the writer uses it
}

// tally returns this second's tally for a rule and a reason, which it creates if necessary. It leaves mu locked for reading, so
// that the second doesn't end before the decision is counted.
func (l *Log) tally(k tallyKey) *tally {
	for {
		l.mu.RLock()
		t, full := l.tallies[k], len(l.tallies) >= maxTallies
		if t == nil && full {
			k.rule = "other" // there is at most one of these for each reason
			t = l.tallies[k]
		}
		if t != nil {
			return t
		}
		l.mu.RUnlock()
		k.rule = strings.Clone(k.rule) // a copy, because the name may be part of a large text
		t = &tally{}
		t.left.Store(perReason)
		l.mu.Lock()
		if l.tallies[k] == nil && (len(l.tallies) < maxTallies || k.rule == "other") {
			l.tallies[k] = t
		}
		l.mu.Unlock()
	}
}

// endSecond writes a line for each rule of which decisions were left out, until a line can't be written, and lets each rule
// have lines again.
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
