package decisionlog

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
)

// maxTallies is how many tallies there are. Beyond it, rules share a tally with the name "other".
const maxTallies = 1000

// keepIdle is how long a tally without decisions is kept, such as that of a removed rule. It is much longer than
// Observe takes from finding a tally to counting in it.
const keepIdle = 10 * time.Minute

type tallyKey struct {
	rule    string
	reason  weir.Reason
	allowed bool
}

// tally counts the decisions of a rule with one reason.
type tally struct {
	tallyKey
	left    atomic.Int64  // how many more lines may be written in this second
	leftOut atomic.Uint64 // decisions that got no line
	told    uint64        // how many of leftOut a line has reported; only the writer uses it
	used    time.Time     // when there last were decisions; only the writer uses it
}

// tally returns the tally for a rule and a reason, which it creates if necessary.
func (l *Log) tally(k tallyKey) *tally {
	l.mu.RLock()
	t, full := l.tallies[k], len(l.tallies) >= maxTallies
	if t == nil && full {
		k.rule = "other" // there is at most one of these for each reason
		t = l.tallies[k]
	}
	l.mu.RUnlock()
	if t != nil {
		return t
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.tallies) >= maxTallies {
		k.rule = "other"
	}
	if t = l.tallies[k]; t == nil {
		k.rule = strings.Clone(k.rule) // a copy, because the name may be part of a large text
		t = &tally{tallyKey: k, used: time.Now()}
		t.left.Store(perReason)
		l.tallies[k] = t
	}
	return t
}

// all returns all tallies.
func (l *Log) all() []*tally {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Collect(maps.Values(l.tallies))
}

// drop deletes a tally.
func (l *Log) drop(t *tally) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tallies, t.tallyKey)
	l.dropped += t.leftOut.Load()
}
