package gateway

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"

	"github.com/weirhq/weir/httplimit"
)

// Learned remembers how many tokens the recent answers of each model had. The gateway uses it to
// estimate calls that don't limit their output. The zero value knows no models.
type Learned struct {
	mu     sync.Mutex
	models map[string]*recentOutputs // guarded by mu
	heard  map[string]int64          // estimates of other nodes, by model; guarded by mu
}

const (
	maxModels  = 256 // bounded, because clients choose the names of models
	maxAnswers = 64  // how many answers of a model are remembered
	maxOfOne   = 6   // how many of them may be from one client: less than a tenth
	enough     = 8   // how many answers an estimate needs
	maxTold    = 16  // how many models to send to other nodes
	maxName    = 64  // bytes of a model's name
)

type recentOutputs struct {
	last []learned // oldest first
	n    int       // how many answers there were in total
}

// learned is the length of one answer, and the client that got it.
type learned struct {
	client uint64
	length int64
}

// learn records the length of an answer. If a client already has maxOfOne answers, the new one replaces its oldest.
// Otherwise a client with very short or long answers could control how much is reserved for the calls of all other
// clients. Answers that name no model are ignored.
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
		for other := range l.models { // evict any model: the order of a map is random
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

// learner identifies a client by its key if that is verified, and otherwise by its address, because clients can make up
// keys.
func learner(c *httplimit.Client) uint64 {
	if c.Verified {
		return maphash.String(seed, c.ID)
	}
	return maphash.Comparable(seed, c.Address)
}

// estimate returns a length that 9 of 10 recent answers of a model didn't exceed. If this node has seen too few
// answers, it returns either their maximum or another node's highest estimate, whichever is higher.
func (l *Learned) estimate(model string) (output int64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.models[model]
	if m != nil && m.n >= enough {
		return m.high(), true
	}
	output, known = l.heard[model]
	if m != nil {
		output, known = max(output, m.high()), true
	}
	return output, known
}

// high returns a length that 9 of 10 answers didn't exceed. If there are few answers, it returns the maximum.
func (m *recentOutputs) high() int64 {
	lengths := make([]int64, len(m.last))
	for i, o := range m.last {
		lengths[i] = o.length
	}
	slices.Sort(lengths)
	if m.n < enough {
		return lengths[len(lengths)-1]
	}
	return lengths[len(lengths)*9/10]
}

// Say returns the estimates that are sent to other nodes: those for the models with the most answers.
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

// Hear replaces the estimates of other nodes. For each model it keeps the highest one, because if too much is reserved,
// the excess is given back when the answer is complete.
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
