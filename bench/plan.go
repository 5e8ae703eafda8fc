package main

import (
	"fmt"
	"strings"
)

// names of workloads.
const (
	hotKey  = "hot key"
	refused = "hot key, refused"
)

func uniform(keys int) string { return amount(keys) + " uniform" }
func zipf(keys int) string    { return amount(keys) + " Zipf 1.1" }
func weight(keys int) string  { return amount(keys) + " memory" }

// amount is 10 M, 500 k, 37.
func amount(n int) string {
	switch {
	case n >= 1_000_000 && n%100_000 == 0:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/1e6), ".0") + " M"
	case n >= 1000 && n%1000 == 0:
		return fmt.Sprintf("%d k", n/1000)
	}
	return fmt.Sprint(n)
}

// plan lists what to measure.
func plan(c *config) []*stage {
	everyone := pick(c.contenders, anyone)
	var stages []*stage
	add := func(s *stage) {
		if len(s.entries) > 0 && len(s.workloads) > 0 {
			stages = append(stages, s)
		}
	}
	hot := hotSequence()
	if c.wants(hotKey) {
		add(&stage{[]string{hotKey}, c.rounds, hotLimit, false, entries(everyone, 1, hot)})
	}
	if c.wants(refused) {
		few := pick(c.contenders, func(o contender) bool { return o.kind == weirs || o.name == goLimiter })
		add(&stage{[]string{refused}, c.rounds, spentLimit, true, entries(few, 1, hot)})
	}
	var names []string
	var seqs []sequence
	if c.wants(uniform(c.keys)) {
		names, seqs = append(names, uniform(c.keys)), append(seqs, uniformSequence(c.keys))
	}
	if c.wants(zipf(c.keys)) {
		names, seqs = append(names, zipf(c.keys)), append(seqs, zipfSequence(c.keys, 1.1))
	}
	add(&stage{names, c.rounds, wideLimit, false, entries(everyone, c.keys, seqs...)})
	if c.large > 0 && c.wants(uniform(c.large)) {
		add(largeStage(c))
	}
	return stages
}

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
	es := entries(fit, c.large, uniformSequence(c.large))
	for _, o := range fit {
		if o.name == storeName {
			es = append(es, entry{o, smallStore(c), c.keys, []sequence{uniformSequence(c.keys)}})
		}
	}
	return &stage{[]string{uniform(c.large)}, c.largeRounds, wideLimit, false, es}
}

// smallStore is the label of the store with fewer keys, among those with many.
func smallStore(c *config) string { return storeName + ", " + amount(c.keys) + " keys" }

func entries(cs []contender, keys int, seqs ...sequence) []entry {
	var es []entry
	for _, o := range cs {
		es = append(es, entry{o, o.name, keys, seqs})
	}
	return es
}
