package main

import (
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// names of workloads.
const (
	hotKey  = "hot key"
	refused = "hot key, refused"
)

func uniform(keys int) string { return report.Amount(keys) + " uniform" }
func zipf(keys int) string    { return report.Amount(keys) + " Zipf 1.1" }
func weight(keys int) string  { return report.Amount(keys) + " memory" }

// plan lists what to measure.
func plan(c *config) []*stage {
	everyone := pick(c.contenders, anyone)
	var stages []*stage
	add := func(s *stage) {
		if len(s.entries) > 0 && len(s.workloads) > 0 {
			stages = append(stages, s)
		}
	}
	hot := workload.Hot()
	if c.wants(hotKey) {
		add(&stage{[]string{hotKey}, c.rounds * hotParts, hotLimit, false, hotParts, entries(everyone, 1, hot)})
	}
	if c.wants(refused) {
		few := pick(c.contenders, func(o contender) bool { return o.kind == weirs || o.name == goLimiter })
		add(&stage{[]string{refused}, c.rounds, spentLimit, true, 1, entries(few, 1, hot)})
	}
	var names []string
	var seqs []workload.Sequence
	if c.wants(uniform(c.keys)) {
		names, seqs = append(names, uniform(c.keys)), append(seqs, workload.Uniform(c.keys))
	}
	if c.wants(zipf(c.keys)) {
		names, seqs = append(names, zipf(c.keys)), append(seqs, workload.Zipf(c.keys, 1.1))
	}
	add(&stage{names, c.rounds, wideLimit, false, 1, entries(everyone, c.keys, seqs...)})
	if c.large > 0 && c.wants(uniform(c.large)) {
		add(largeStage(c))
	}
	if c.wants(httpWorkload) {
		add(httpStage(c))
	}
	return stages
}

// hotParts is how many rounds take the place of one where two cores fight over one counter. How fast they do
// that changes every few seconds, whatever the code: a rival's check took 48 ns for a while and 130
// for another, and in rounds of seconds chance decided with which of both a store was compared. There is
// nothing to fill, so contenders can take turns often enough to share that luck.
const hotParts = 10

// noisyRounds is how often to measure where cores share something with the kernel: that varies from round to round, and there is
// nothing to fill.
func (c *config) noisyRounds() int { return 3 * c.rounds }

// weighing is a contender whose memory is measured with so many keys.
type weighing struct {
	contender
	keys int
}

// planWeights lists whose memory to measure: the limiter's own is its store's.
func planWeights(c *config) []weighing {
	var ws []weighing
	if c.wants(weight(c.keys)) {
		for _, o := range pick(c.contenders, func(o contender) bool { return o.kind == rival || o.name == storeName }) {
			ws = append(ws, weighing{o, c.keys})
		}
	}
	if c.large > 0 && c.wants(weight(c.large)) {
		for _, o := range pick(c.contenders, func(o contender) bool { return o.name == storeName }) {
			ws = append(ws, weighing{o, c.large})
		}
	}
	return ws
}

// largeStage compares a store of many keys with the same store of fewer in the same rounds.
func largeStage(c *config) *stage {
	fit := pick(c.contenders, func(o contender) bool {
		return o.kind == weirs || o.name == goLimiter || c.largeRivals && o.kind == rival
	})
	es := entries(fit, c.large, workload.Uniform(c.large))
	for _, o := range fit {
		if o.name == storeName {
			es = append(es, entry{o, smallStore(c), c.keys, []workload.Sequence{workload.Uniform(c.keys)}})
		}
	}
	return &stage{[]string{uniform(c.large)}, c.largeRounds, wideLimit, false, 1, es}
}

// smallStore is the label of the store with fewer keys, among those with many.
func smallStore(c *config) string { return storeName + ", " + report.Amount(c.keys) + " keys" }

func entries(cs []contender, keys int, seqs ...workload.Sequence) []entry {
	var es []entry
	for _, o := range cs {
		es = append(es, entry{o, o.name, keys, seqs})
	}
	return es
}
