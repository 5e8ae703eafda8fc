package top

import (
	"strings"
	"time"
)

// maxRules is how many rules are known. Beyond, the one that was hit the longest ago makes way.
const maxRules = 1000

// rules is what is known of rules: how often they decide, and when they were last used.
type rules struct{ byID map[string]*rule }

type rule struct {
	id                string
	hit, refusal      time.Time // the last ones; zero: none since the node began
	total             Total
	requests, refused history
}

// Total is how often a rule was used so far.
type Total struct {
	Decisions, Refusals uint64
	Events              uint64 // other signs of use
}

func (r *rules) find(id string) *rule {
	if f := r.byID[id]; f != nil {
		return f
	}
	if len(r.byID) >= maxRules {
		var oldest *rule
		for _, f := range r.byID {
			if oldest == nil || f.hit.Before(oldest.hit) {
				oldest = f
			}
		}
		delete(r.byID, oldest.id)
	}
	f := &rule{id: strings.Clone(id)}
	r.byID[f.id] = f
	return f
}

// hit notes which rules a decision has used, and returns the id of the one that binds.
func (r *rules) hit(s *sample, now time.Time) string {
	for _, id := range s.also {
		if id != "" {
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

// count notes how often a rule was used so far. What has come since it was last asked for belongs to a slot.
func (r *rules) count(id string, t Total, slot int64, now time.Time) {
	f := r.find(id)
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
	f.requests.add(slot, float64(t.Decisions-f.total.Decisions))
	f.total = t
}
