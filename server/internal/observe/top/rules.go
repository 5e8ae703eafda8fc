package top

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// maxRules is how many rules are known. Beyond, those that were hit the longest ago make way.
const maxRules = 1000

// rules is what is known of rules: how often they decide, and when they were last used.
type rules struct {
	byID    map[string]*rule
	evicted bool // some were known, and aren't any more
}

type rule struct {
	id                string
	hit, refusal      time.Time // the last ones; zero: none since the node began
	total             Total
	unknown           bool // what it had counted when it became known, so that total isn't that yet
	requests, refused history
	shadow            history
}

// Total is how often a rule was used so far.
type Total struct {
	Decisions, Refusals uint64
	Shadow              uint64 // what it would have refused, were it not in shadow
	Events              uint64 // other signs of use
}

func (r *rules) find(id string) *rule {
	if f := r.byID[id]; f != nil {
		return f
	}
	if len(r.byID) >= maxRules {
		// A tenth at a time, so that not every new one has to look for the oldest.
		oldest := slices.SortedFunc(maps.Values(r.byID), func(a, b *rule) int { return a.hit.Compare(b.hit) })
		for _, f := range oldest[:maxRules/10] {
			delete(r.byID, f.id)
		}
		r.evicted = true
	}
	f := &rule{id: strings.Clone(id), unknown: r.evicted}
	r.byID[f.id] = f
	return f
}

// hit notes which rules a decision has used, and returns the id of the one that binds.
func (r *rules) hit(s *sample, charges []charged, now time.Time) string {
	for i := range charges {
		if id := charges[i].rule; id != s.rule {
			r.find(id).hit = now
		}
	}
	f := r.find(s.rule)
	f.hit = now
	if s.refused {
		f.refusal = now
	}
	return f.id
}

// count notes how often a rule was used so far. What has come since it was last asked for belongs to a slot. No other makes way
// for it: a rule that is used is hit as well.
func (r *rules) count(id string, t Total, slot int64, now time.Time) {
	if r.byID[id] == nil && len(r.byID) >= maxRules {
		return
	}
	f := r.find(id)
	if f.unknown {
		f.total, f.unknown = t, false // most of it may be old
		return
	}
	if t.Decisions < f.total.Decisions {
		f.total = Total{} // it was removed and is back, and counts from 0
	}
	if t.Decisions > f.total.Decisions || t.Events > f.total.Events {
		f.hit = now
	}
	if t.Refusals > f.total.Refusals {
		f.refusal = now
		f.refused.add(slot, float64(t.Refusals-f.total.Refusals))
	}
	if t.Shadow > f.total.Shadow {
		f.refusal = now
		f.shadow.add(slot, float64(t.Shadow-f.total.Shadow))
	}
	f.requests.add(slot, float64(t.Decisions-f.total.Decisions))
	f.total = t
}
