package gateway

import (
	"slices"
	"sync"
)

// learned remembers how long models' recent answers were, to estimate those of requests that set no limit. The zero value has
// learned nothing.
type learned struct {
	mu     sync.Mutex
	models map[string]*recentOutputs // guarded by mu
}

const (
	maxModels = 256 // clients choose their names
	enough    = 8   // answers, before they say anything
)

// recentOutputs are the last answers of a model.
type recentOutputs struct {
	last [64]int64
	n    int // how many there were in all
}

func (l *learned) learn(model string, output int64) {
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

// estimate is a length that nine of ten recent answers of a model didn't pass.
func (l *learned) estimate(model string) (output int64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.models[model]
	if m == nil || m.n < enough {
		return 0, false
	}
	sorted := slices.Clone(m.last[:min(m.n, len(m.last))])
	slices.Sort(sorted)
	return sorted[len(sorted)*9/10], true
}
