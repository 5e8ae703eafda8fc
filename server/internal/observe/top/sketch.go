package top

import (
	"container/heap"
	"math"
	"slices"
	"strings"
	"time"
)

const (
	// Slot is the length of a slot in the last minute's history.
	Slot = 2 * time.Second
	// Slots is how many slots that history has: a minute.
	Slots = 30
	// window is how many slots rates are averaged over: ten seconds.
	window = 5
	// capacity is how many entries a sketch has.
	capacity = 1000
)

// decayed is the factor by which a count decays in a slot: in a window, it decays to half.
var decayed = math.Pow(0.5, 1./window)

// sketch is a Space-Saving sketch with decay (Metwally and others, 2005; Cormode and others, 2009)
// of a thousand entries. A client without an entry replaces the one with the lowest count, and
// starts with that count. So a count is never too low, and a client without an entry has at most
// the lowest count: a client with more than a thousandth of all requests, weighted by age, has an
// entry. A request that counts for an address too counts as two requests.
//
// Counts only decide which clients have entries. What people see comes from an entry's history,
// which starts at zero when a client takes over the entry, and so is never too high.
type sketch struct {
	byName map[name]*entry
	byLow  lowest[*entry]
}

type name struct {
	client uint64
	rule   string // "" counts over all rules, or the requests that no rule decided
}

type entry struct {
	client
	ranked
	rule     string
	unknown  float64 // the part of count that may belong to other clients, with the same decay
	requests history
	refused  history
}

// sketches are the clients with the most requests, and those with the most refusals.
type sketches struct{ requests, refused sketch }

func newSketches() sketches { return sketches{newSketch(), newSketch()} }

func (k *sketches) count(s *sample, rule string, slot int64) {
	k.requests.count(s, rule, slot, s.weight)
	refusals := 0.
	if s.refused {
		refusals = s.weight
	}
	k.refused.count(s, rule, slot, refusals)
}

func (k *sketches) decay(slots int64) {
	k.requests.decay(slots)
	k.refused.decay(slots)
}

func newSketch() sketch { return sketch{byName: make(map[name]*entry, capacity)} }

// count adds a decision to its client's entry. Weight is how much to add to the count. If it is 0,
// count adds no entry.
func (k *sketch) count(s *sample, rule string, slot int64, weight float64) {
	n := name{s.id, rule}
	e := k.byName[n]
	switch {
	case e != nil:
	case weight == 0:
		return
	default:
		n.rule = strings.Clone(rule) // a copy, because the name may be part of a large text
		if len(k.byLow) < capacity {
			e = &entry{client: s.client, rule: n.rule}
			heap.Push(&k.byLow, e)
		} else {
			e = k.byLow[0]
			delete(k.byName, name{e.id, e.rule})
			*e = entry{client: s.client, ranked: e.ranked, rule: n.rule, unknown: e.count}
		}
		k.byName[n] = e
	}
	e.requests.add(slot, s.weight)
	if s.refused {
		e.refused.add(slot, s.weight)
	}
	if weight > 0 {
		e.count += weight
		heap.Fix(&k.byLow, e.place)
	}
}

// decay lowers all counts.
func (k *sketch) decay(slots int64) {
	factor := math.Pow(decayed, float64(slots))
	for _, e := range k.byLow { // all counts change by the same factor, so the heap stays valid
		e.count *= factor
		e.unknown *= factor
	}
}

// missing returns the highest rate, in requests or refusals per second, that a client without an
// entry may have.
func (k *sketch) missing() float64 {
	if len(k.byLow) < capacity {
		return 0
	}
	return lacking(k.byLow[0].count)
}

// ranked is an entry's count, and its place in the heap.
type ranked struct {
	count float64 // with decay
	place int     // index in the heap
}

func (r *ranked) rank() *ranked { return r }

// lowest is a heap of entries with the lowest count first.
type lowest[T interface{ rank() *ranked }] []T

var _ heap.Interface = (*lowest[*entry])(nil)

func (l lowest[T]) Len() int           { return len(l) }
func (l lowest[T]) Less(i, j int) bool { return l[i].rank().count < l[j].rank().count }
func (l lowest[T]) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].rank().place, l[j].rank().place = i, j
}

func (l *lowest[T]) Push(x any) {
	e := x.(T)
	e.rank().place = len(*l)
	*l = append(*l, e)
}

func (l *lowest[T]) Pop() any {
	last := len(*l) - 1
	e := (*l)[last]
	*l = slices.Delete(*l, last, last+1)
	return e
}

// history counts events by slot, for the current slot and those before it.
type history struct {
	at    int64 // the newest slot
	slots [Slots + 1]float32
}

func (h *history) add(slot int64, n float64) {
	for ; h.at < slot; h.at++ {
		if slot-h.at > int64(len(h.slots)) {
			h.at = slot - int64(len(h.slots)) // clears all slots
		}
		h.slots[(h.at+1)%int64(len(h.slots))] = 0
	}
	h.slots[slot%int64(len(h.slots))] += float32(n)
}

// last returns the completed slots, newest last.
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
