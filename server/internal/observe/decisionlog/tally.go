package decisionlog

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/weirhq/weir"
)

// maxTallies is how many rules and reasons are told apart. Further ones share the rule "other".
const maxTallies = 1000

// keepIdle is how many seconds a tally stays without a decision, such as that of a rule that was removed. That is
// much longer than a decision takes from finding its tally to counting there.
const keepIdle = 600

type tallyKey struct {
	rule    string
	reason  weir.Reason
	allowed bool
}

// tally is what a rule decided for one reason.
type tally struct {
	tallyKey
	left    atomic.Int64  // how many more lines this second may have
	leftOut atomic.Uint64 // decisions without a line
	told    uint64        // how many of those left out a line has told; the writer's
	idle    int           // for how many seconds it has had nothing to do; the writer's
}

// tally finds what counts a rule's decisions, or makes it.
func (l *Log) tally(k tallyKey) *tally {
	l.mu.RLock()
	t, full := l.tallies[k], len(l.tallies) >= maxTallies
	if t == nil && full {
		k.rule = "other" // one for each reason, at most
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
		k.rule = strings.Clone(k.rule) // it may be a part of a long text
		t = &tally{tallyKey: k}
		t.left.Store(perReason)
		l.tallies[k] = t
	}
	return t
}

// dropIdle makes room for others.
func (l *Log) dropIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.tallies, func(_ tallyKey, t *tally) bool {
		if t.idle < keepIdle {
			return false
		}
		l.dropped += t.leftOut.Load()
		return true
	})
}

// all returns the tallies that there are now.
func (l *Log) all() []*tally {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Collect(maps.Values(l.tallies))
}
