package gateway

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/weirhq/weir/httplimit"
)

// Learned remembers how many tokens the recent answers of each model had, to estimate calls that
// set no limit. The zero value has learned nothing.
type Learned struct {
	mu     sync.Mutex
	models map[string]*recentOutputs // guarded by mu
	heard  map[string]int64          // guarded by mu: what other nodes have learned
}

const (
	maxModels  = 256 // clients choose their names
	maxAnswers = 64  // remembered answers of a model
	maxOfOne   = 6   // how many of these one client may have: less than a tenth
	enough     = 8   // how many answers it takes for an estimate
	maxTold    = 16  // models that other nodes hear of
	maxName    = 64  // bytes of a model's name
)

type recentOutputs struct {
	last []learned // oldest first
	n    int       // how many there were in all
}

// learned is the length of one answer and who got it.
type learned struct {
	client uint64
	length int64
}

// learn records the length of an answer. A client's answer beyond maxOfOne replaces its oldest;
// otherwise a client with very short or very long answers would decide how much all other clients'
// calls reserve. Answers that name no model are ignored.
func (l *Learned) learn(model string, client uint64, length int64) {
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
		for other := range l.models { // any of them, in map order
			if len(l.models) < maxModels {
				break
			}
			delete(l.models, other)
		}
		m = &recentOutputs{}
		l.models[model] = m
	}
	m.n++
	m.last = append(m.last, learned{client, length})
	drop, has := 0, 0
	for i, o := range slices.Backward(m.last) {
		if o.client != client {
			continue
		}
		if has++; has > maxOfOne {
			drop = i
		}
	}
	if has > maxOfOne || len(m.last) > maxAnswers {
		m.last = slices.Delete(m.last, drop, drop+1)
	}
}

var seed = maphash.MakeSeed()

// learner identifies a client by its verified key, or else by its address: keys can be made up.
func learner(c *httplimit.Client) uint64 {
	if c.Verified {
		return maphash.String(seed, c.ID)
	}
	return maphash.Comparable(seed, c.Address)
}

// estimate returns a length that 9 of 10 recent answers of a model didn't exceed: on this node, or
// else on the node where answers were longest. With fewer than enough answers, it is the longest.
func (l *Learned) estimate(model string) (output int64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.models[model]; m != nil && m.n >= enough {
		return m.high(), true
	}
	output, known = l.heard[model]
	if m := l.models[model]; m != nil {
		output, known = max(output, slices.Max(m.lengths())), true
	}
	return output, known
}

func (m *recentOutputs) high() int64 {
	sorted := slices.Sorted(slices.Values(m.lengths()))
	return sorted[len(sorted)*9/10]
}

func (m *recentOutputs) lengths() []int64 {
	lengths := make([]int64, len(m.last))
	for i, o := range m.last {
		lengths[i] = o.length
	}
	return lengths
}

// Say returns what other nodes should hear: the estimates of the models with the most answers.
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

// Hear replaces what other nodes reported before. The higher of two estimates counts, since the
// difference is settled with the answer.
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
