package gateway

import (
	"cmp"
	"slices"
	"sync"
)

// Learned remembers how long models' recent answers were, of several choices each, to estimate those of requests that set no limit.
// The zero value has learned nothing.
type Learned struct {
	mu     sync.Mutex
	models map[string]*recentOutputs // guarded by mu
	heard  map[string]int64          // guarded by mu: what other nodes have learned
}

const (
	maxModels = 256 // clients choose their names
	enough    = 8   // answers, before they say anything
	maxTold   = 16  // models that the other nodes hear of
	maxName   = 64  // bytes of the name of one
)

// recentOutputs are the last answers of a model.
type recentOutputs struct {
	last [64]int64
	n    int // how many there were in all
}

// learn notes the length of an answer. One of a model without a name says nothing of the next, which may be another model.
func (l *Learned) learn(model string, output int64) {
	if model == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.models[model]
	if m == nil {
		if l.models == nil {
			l.models = map[string]*recentOutputs{}
		}
		for other := range l.models { // any, in the order of the map
			if len(l.models) < maxModels {
				break
			}
			delete(l.models, other)
		}
		m = &recentOutputs{}
		l.models[model] = m
	}
	m.last[m.n%len(m.last)] = output
	m.n++
}

// estimate is a length that nine of ten recent answers of a model didn't pass: here, or else on the node where they were
// longest. Of fewer answers than are enough, it is the longest.
func (l *Learned) estimate(model string) (output int64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.models[model]; m != nil && m.n >= enough {
		return m.high(), true
	}
	output, known = l.heard[model]
	if m := l.models[model]; m != nil {
		output, known = max(output, slices.Max(m.last[:m.n])), true
	}
	return output, known
}

func (m *recentOutputs) high() int64 {
	sorted := slices.Sorted(slices.Values(m.last[:min(m.n, len(m.last))]))
	return sorted[len(sorted)*9/10]
}

// Say is what the other nodes should hear: the estimates of the models that were asked most.
func (l *Learned) Say() map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var told []string
	for model, m := range l.models {
		if m.n >= enough && len(model) <= maxName {
			told = append(told, model)
		}
	}
	slices.SortFunc(told, func(a, b string) int {
		return cmp.Or(cmp.Compare(l.models[b].n, l.models[a].n), cmp.Compare(a, b))
	})
	out := map[string]int64{}
	for _, model := range told[:min(len(told), maxTold)] {
		out[model] = l.models[model].high()
	}
	return out
}

// Hear takes in what the other nodes say, in place of what they said before. Of two estimates the higher one counts: it is
// settled when the answer is there.
func (l *Learned) Hear(nodes []map[string]int64) {
	heard := map[string]int64{}
	for _, said := range nodes {
		for model, output := range said {
			heard[model] = max(heard[model], output)
		}
	}
	l.mu.Lock()
	l.heard = heard
	l.mu.Unlock()
}
