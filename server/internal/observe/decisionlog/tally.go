package decisionlog

import (
	"maps"
	"strings"
	"sync/atomic"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/observer"
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
	left    atomic.Int64 // how many more lines this second may have
	leftOut []stripe     // a power of two
	told    uint64       // how many of those left out a line has told; the writer's
	idle    int          // for how many seconds it has had nothing to do; the writer's
}

// stripe is a core's part of a count, more or less: cores that write to one place would wait for each other.
type stripe struct {
	n atomic.Uint64
	_ [56]byte // to the end of the cache line
}

func newTally(k tallyKey) *tally {
	k.rule = strings.Clone(k.rule) // it may be a part of a long text
	t := &tally{tallyKey: k, leftOut: make([]stripe, observer.Stripes())}
	t.left.Store(perReason)
	return t
}

func (t *tally) leaveOut(stripe uint32) { t.leftOut[int(stripe)&(len(t.leftOut)-1)].n.Add(1) }

// sum is how many were left out.
func (t *tally) sum() (sum uint64) {
	for i := range t.leftOut {
		sum += t.leftOut[i].n.Load()
	}
	return sum
}

// table finds tallies. It is replaced, never changed.
type table map[tallyKey]*tally

// tally finds what counts a rule's decisions, or makes it.
func (l *Log) tally(k tallyKey) *tally {
	if t := (*l.table.Load())[k]; t != nil {
		return t
	}
	if old := *l.table.Load(); len(old) >= maxTallies {
		k.rule = "other" // one for each reason, at most
		if t := old[k]; t != nil {
			return t // without the lock: there may be many rules that share it
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := *l.table.Load()
	if len(old) >= maxTallies {
		k.rule = "other"
	}
	if t := old[k]; t != nil {
		return t
	}
	fresh := maps.Clone(old)
	t := newTally(k)
	fresh[t.tallyKey] = t
	l.table.Store(&fresh)
	return t
}

// dropIdle makes room for others.
func (l *Log) dropIdle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	fresh := maps.Clone(*l.table.Load())
	maps.DeleteFunc(fresh, func(_ tallyKey, t *tally) bool {
		if t.idle < keepIdle {
			return false
		}
		l.dropped += t.sum()
		return true
	})
	l.table.Store(&fresh)
}
