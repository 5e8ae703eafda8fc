package top

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

const (
	// Slot is the length of a slot in the history of the last minute.
	Slot = 2 * time.Second
	// Slots is the number of slots in that history.
	Slots = 30
	// window is the number of slots over which rates are averaged: ten seconds.
	window = 5
	// A sketch has up to full entries. When it is full, it forgets all except the capacity highest ones.
	capacity, full = 1000, 1500
)

// decayed is the factor by which a count decays in each slot. Over a window, a count decays to half.
var decayed = math.Pow(0.5, 1./window)

// sketch is a Space-Saving sketch with decay (Metwally and others, 2005; Cormode and others, 2009). When it is full, it
// forgets the third of the clients with the lowest counts. A client without an entry starts with the highest count that
// was forgotten. So a count is never too low, and a client that sends more than a thousandth of all requests, weighted
// by age, has an entry. A request that is also counted for an address counts as two requests.
//
// Counts only decide which clients have entries. People see the history of an entry. It starts at zero, so it is never
// too high.
type sketch struct {
	entries map[name]*entry
	forgot  float64 // the highest forgotten count, with decay
}

type name struct {
	client uint64
	rule   string // "" counts over all rules, or counts the requests that no rule decided
}

type entry struct {
	client
	count    float64 // decays with time
	requests history
	refused  history
}

func (k *sketch) clear() { *k = sketch{entries: make(map[name]*entry, full)} }

// count counts a decision in the entry of its client. It adds weight to the count. If weight is 0, it doesn't add an
// entry.
func (k *sketch) count(s *sample, rule string, slot int64, weight float64) {
	n := name{s.id, rule}
	e := k.entries[n]
	if e == nil {
		if weight == 0 {
			return
		}
		if len(k.entries) == full {
			k.shrink()
		}
		n.rule = strings.Clone(rule) // the name may be part of a large text, so copy it
		e = &entry{client: s.client, count: k.forgot}
		k.entries[n] = e
	}
	e.count += weight
	e.requests.add(slot, s.weight)
	if s.refused {
		e.refused.add(slot, s.weight)
	}
}

// shrink forgets the clients with the lowest counts, so that capacity entries remain.
func (k *sketch) shrink() {
	low := slices.SortedFunc(maps.Keys(k.entries), func(a, b name) int { return cmp.Compare(k.entries[a].count, k.entries[b].count) })
	low = low[:len(low)-capacity]
	k.forgot = k.entries[low[len(low)-1]].count
	for _, n := range low {
		delete(k.entries, n)
	}
}

func (k *sketch) decay(slots int64) {
	factor := math.Pow(decayed, float64(slots))
	k.forgot *= factor
	for _, e := range k.entries {
		e.count *= factor
	}
}

// history counts events in the current slot and in the slots before it.
type history struct {
	at    int64 // the newest slot
	slots [Slots + 1]float32
}

func (h *history) add(slot int64, n float64) {
	for ; h.at < slot; h.at++ {
		if slot-h.at > int64(len(h.slots)) {
			h.at = slot - int64(len(h.slots)) // this makes the loop clear all slots
		}
		h.slots[(h.at+1)%int64(len(h.slots))] = 0
	}
	h.slots[slot%int64(len(h.slots))] += float32(n)
}

// last returns the completed slots, the newest last.
func (h *history) last(slot int64) (all [Slots]float32) {
	for i := range all {
		if at := slot - Slots + int64(i); at >= 0 && at <= h.at && at > h.at-int64(len(h.slots)) {
			all[i] = h.slots[at%int64(len(h.slots))]
		}
	}
	return all
}

// rate returns the mean rate per second over the last window.
func rate(all [Slots]float32) float64 {
	sum := 0.
	for _, v := range all[Slots-window:] {
		sum += float64(v)
	}
	return sum / (window * Slot).Seconds()
}
