package top

import (
	"cmp"
	"container/heap"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/siphash"
)

const (
	// perRule is how many keys of a rule are remembered if there is room.
	perRule = 1000
	// hourRules is how many rules are remembered. The rules that were hit the longest ago make room
	// for others.
	hourRules = 10_000
	// hourRows and hourCells bound the memory for all rules and keys: 8 and 44 MiB. Together with
	// the index of rows and the rules themselves, that is 64 MiB at most.
	hourRows, hourCells = 1 << 17, 44 << 20 / int32(unsafe.Sizeof(cell{}))
	// subjectBytes is the longest subject that is kept whole. Of a longer one, its hash, its
	// beginning and its end are kept.
	subjectBytes = 192
	// spareCells and spareRows are more than one decision can need.
	spareCells, spareRows = 64, 16
	// halved is the half-life in slots of a request's weight when the busiest keys are chosen.
	halved = HourSlots / 2
)

// hour remembers, for every rule, how many requests its busiest keys made in the last hour and how
// many were refused. A key is what the rule counts by. A Space-Saving sketch for each rule, like
// those for clients, finds the busiest keys: see [sketch].
//
// When memory runs out, all rules keep fewer keys, and those with the most keys lose the most.
type hour struct {
	key   *key
	slot  uint32 // that runs
	base  uint32 // the slot in which a request counts 1 for the sketches
	rules []*hourRule
	byID  map[string]int32 // indices of rules
	rows  []row
	free  int32 // first of the free rows, which are chained through place; or -1
	used  int32 // rows
	keep  int   // how many keys each rule may have at present
	index map[rowName]int32
	cells cells
	sweep int32 // the next row to check for being idle
	// since is when the hour began to remember.
	since time.Time
	// oneIn is the highest weight of a decision in each slot; slot s is at s % HourSlots.
	oneIn [HourSlots]float32
	set   *weir.RuleSet
	known map[string]*weir.Rule // of the set
	// weight is the weight of a request now in the sketches. Requests of earlier slots weigh less
	// in comparison.
	weight float64
}

type rowName struct {
	id   uint64
	rule int32
}

// hourRule is what is remembered of a rule.
type hourRule struct {
	of           *hour
	id           string
	counted      string // what the rule counts by, as text; if that changes, its keys are forgotten
	hit, refusal time.Time
	total        series // all requests to which the rule applied
	would        series // requests that the rule in shadow would have refused
	low          []int32
	// lost is the highest count of a forgotten key. Forgot is the slot in which a key was last
	// forgotten that had sent requests within the hour.
	lost   float64
	forgot uint32
}

// row is a key of a rule. It has no pointers.
type row struct {
	series
	id    uint64
	count float64 // of the sketch
	full  uint32  // when its counter is full again, in Unix seconds
	text  int32   // the cells of its subject, or of the part that is kept
	lost  float32 // how many requests it may have made at most before it got this row
	place int32   // its index in hourRule.low; the next free row, if this one is free
	at    uint32  // time of the last request: the low bits of Unix milliseconds, which are enough for an hour
	rule  int16
	cut   bool  // only a part of the subject is kept
	used  uint8 // how much of its limit was used after its last request, in 1/usedAll
}

const usedAll = 250

func newHour() hour {
	return hour{free: -1, keep: perRule, weight: 1, byID: map[string]int32{}, index: map[rowName]int32{}, cells: cells{most: hourCells}}
}

// charged is a rule to which a decision was charged.
type charged struct {
	rule     string
	from, to uint32 // the subject's place in written.text
	id       uint64 // the hash of a cut subject; the hash of a whole one is made later
	tokens   int64
	full     time.Duration // until the counter is full again
	cut      bool
	refused  bool
	takes    bool // tokens: no other rule refused it
	would    bool // have refused it, in shadow
	used     uint8
}

// of records how a limit stands after the decision.
func (c *charged) of(d *weir.Decision, l *weir.LimitStatus) {
	refused := !l.Allowed && !l.Policy.Shadow && !d.Allowed
	c.refused, c.takes = c.refused || refused, d.Allowed
	c.would = c.would || !l.Allowed && l.Policy.Shadow && !l.Degraded
	if l.Degraded || l.Policy.Candidate {
		return
	}
	used := uint8(usedAll)
	if most := l.Policy.Limit.Max(); !refused && l.Remaining > 0 {
		used = uint8(usedAll * float64(max(0, most-l.Remaining)) / float64(most))
	}
	if used >= c.used {
		c.used, c.full = used, l.ResetAfter
	}
}

// advance begins the current slot. If the clock was set back by more than drift can explain, the
// hour is forgotten, because nobody can tell when its requests came.
func (h *hour) advance(now time.Time, key *key, set *weir.RuleSet) {
	slot := uint32(max(0, now.Unix()) / int64(HourSlot/time.Second))
	if key != h.key || slot+6 < h.slot || slot > h.slot+HourSlots {
		*h = newHour()
		h.key, h.slot, h.base, h.since = key, slot, slot, now
	}
	if set != h.set {
		h.set = set
		h.reread()
	}
	if slot > h.slot {
		for s := h.slot + 1; s <= slot; s++ {
			h.oneIn[s%HourSlots] = 0
		}
		h.slot = slot
		if h.cells.left() > hourCells/4 && h.used < hourRows*3/4 {
			h.keep = min(perRule, h.keep+h.keep/8+1)
		}
		if slot-h.base > 64*halved {
			for i := range h.rows { // the order stays
				h.rows[i].count /= h.weight
			}
			for _, r := range h.rules {
				if r != nil {
					r.lost /= h.weight
				}
			}
			h.base = slot
		}
		h.weight = math.Exp2(float64(slot-h.base) / halved)
	}
	// Rows are checked in small steps, so that each is checked at least once in an hour's slots.
	for range len(h.rows)/HourSlots + 1 {
		if len(h.rows) == 0 {
			break
		}
		h.sweep = (h.sweep + 1) % int32(len(h.rows))
		if r := &h.rows[h.sweep]; r.rule >= 0 && r.slot+HourSlots <= h.slot {
			h.evict(h.rules[r.rule], r.place)
		}
	}
}

// reread forgets the keys of rules that now count by something else.
func (h *hour) reread() {
	rules := h.set.Rules().Rules
	h.known = make(map[string]*weir.Rule, len(rules))
	for i := range rules {
		h.known[rules[i].ID] = &rules[i]
	}
	for _, r := range h.rules {
		if by := h.countedBy(r); r != nil && r.counted != by {
			h.shorten(r, 0)
			r.counted = by
		}
	}
}

// countedBy returns what a rule counts by, as text.
func (h *hour) countedBy(r *hourRule) string {
	if r == nil || h.known[r.id] == nil {
		return ""
	}
	k := h.known[r.id]
	if k.By == nil && k.Descriptor == nil {
		return "api_key"
	}
	return strings.Join(k.Descriptor, "\x00") + "\x00" + strings.Join(k.By, "\x00")
}

// find returns the index of a rule, which it adds if need be.
func (h *hour) find(id string) int32 {
	if i, there := h.byID[id]; there {
		return i
	}
	if len(h.byID) >= hourRules {
		h.forgetRules()
	}
	r := &hourRule{of: h, id: strings.Clone(id)}
	r.counted = h.countedBy(r)
	i := len(h.rules)
	if len(h.byID) < i {
		i = slices.Index(h.rules, nil)
	} else {
		h.rules = append(h.rules, nil)
	}
	h.rules[i], h.byID[r.id] = r, int32(i)
	return int32(i)
}

// forgetRules forgets the tenth of the rules that were hit the longest ago, so that not every new
// rule has to look for the oldest.
func (h *hour) forgetRules() {
	oldest := slices.SortedFunc(maps.Keys(h.byID), func(a, b string) int {
		return h.rules[h.byID[a]].hit.Compare(h.rules[h.byID[b]].hit)
	})
	for _, id := range oldest[:(len(oldest)+9)/10] {
		r := h.rules[h.byID[id]]
		h.shorten(r, 0)
		r.total.drop(&h.cells)
		r.would.drop(&h.cells)
		h.rules[h.byID[id]] = nil
		delete(h.byID, id)
	}
}

// count counts a decision for a rule that it was charged to.
func (h *hour) count(c *charged, subject []byte, weight float64, now time.Time) {
	if h.cells.left() < spareCells || h.used > hourRows-spareRows {
		h.shrink()
	}
	place := h.find(c.rule)
	r := h.rules[place]
	oneIn := &h.oneIn[h.slot%HourSlots]
	*oneIn = max(*oneIn, float32(weight))
	n := amount{requests: weight}
	r.hit = now
	if c.refused {
		n.refused, r.refusal = weight, now
	}
	if c.refused || c.takes {
		n.tokens = weight * float64(c.tokens)
	} else {
		n.elsewhere = weight
	}
	if c.would {
		r.refusal = now
		r.would.add(&h.cells, h.slot, amount{requests: weight})
	}
	r.total.add(&h.cells, h.slot, n)
	id := c.id
	if !c.cut {
		id = h.key.subject(subject)
	}
	name := rowName{id, place}
	i, there := h.index[name]
	if !there {
		i = h.insert(r, name, subject, c.cut)
	}
	k := &h.rows[i]
	k.series.add(&h.cells, h.slot, n)
	// Decisions from different cores aren't in the order in which they were made: of those in the
	// same millisecond, keep the highest use.
	if at := uint32(now.UnixMilli()); k.at != at || c.used >= k.used {
		k.used, k.at, k.full = c.used, at, uint32(now.Add(max(0, c.full)+time.Second-1).Unix())
	}
	k.count += weight * h.weight
	heap.Fix(r, int(k.place))
}

// insert makes a row for a new key. If the rule has as many keys as it may, the new key replaces
// the one with the lowest count, and counts on from there.
func (h *hour) insert(r *hourRule, name rowName, subject []byte, cut bool) int32 {
	low := 0.
	if len(r.low) >= h.keep {
		low = h.rows[r.low[0]].count
		h.evict(r, 0)
	}
	i := h.free
	if i >= 0 {
		h.free = h.rows[i].place
	} else {
		if len(h.rows) == cap(h.rows) { // append might allocate more than hourRows
			h.rows = append(make([]row, 0, min(hourRows, max(1024, 2*cap(h.rows)))), h.rows...)
		}
		i = int32(len(h.rows))
		h.rows = h.rows[:i+1]
	}
	h.used++
	h.rows[i] = row{id: name.id, rule: int16(name.rule), count: low, cut: cut, lost: h.lost(r), text: h.cells.write(subject)}
	h.index[name] = i
	h.rows[i].place = int32(len(r.low))
	r.low = append(r.low, i)
	return i
}

// evict forgets a key of a rule.
func (h *hour) evict(r *hourRule, place int32) {
	i := r.low[place]
	heap.Remove(r, int(place))
	k := &h.rows[i]
	if k.slot+HourSlots > h.slot {
		r.lost, r.forgot = max(r.lost, k.count), h.slot
	}
	delete(h.index, rowName{k.id, int32(k.rule)})
	k.series.drop(&h.cells)
	h.cells.give(k.text, 0)
	*k = row{rule: -1, place: h.free}
	h.free = i
	h.used--
}

// shorten forgets the keys of a rule with the lowest counts, until so many are left.
func (h *hour) shorten(r *hourRule, left int) {
	for len(r.low) > left {
		h.evict(r, 0)
	}
}

// shrink makes all rules keep fewer keys, until a sixteenth of the memory is free.
func (h *hour) shrink() {
	for h.cells.left() < hourCells/16 || h.used > hourRows*15/16 {
		if h.keep == 1 {
			h.forgetRules()
			continue
		}
		h.keep = max(1, h.keep-h.keep/8-1)
		for _, r := range h.rules {
			if r != nil {
				h.shorten(r, h.keep)
			}
		}
	}
}

// lost returns how many requests of the hour a forgotten key of a rule may have made at most. The
// oldest requests weigh a quarter of the newest.
func (h *hour) lost(r *hourRule) float32 {
	if r.forgot == 0 || r.forgot+HourSlots <= h.slot {
		return 0
	}
	return float32(math.Ceil(r.lost / h.weight * (1 << (HourSlots / halved))))
}

// rarest returns the highest weight of a decision in the hour.
func (h *hour) rarest() float64 { return max(1, float64(slices.Max(h.oneIn[:]))) }

// bytes returns the memory that the hour holds.
func (h *hour) bytes() int {
	const perRow, perRule = 64, 256 // in the index, and of a rule with its name and its heap's header
	return len(h.cells.slabs)*slab*int(unsafe.Sizeof(cell{})) + cap(h.rows)*int(unsafe.Sizeof(row{})) + len(h.rows)*perRow + len(h.rules)*perRule
}

// hourRule is a heap of its rows, the lowest count first.
var _ heap.Interface = (*hourRule)(nil)

func (r *hourRule) Len() int { return len(r.low) }
func (r *hourRule) Less(i, j int) bool {
	return cmp.Less(r.of.rows[r.low[i]].count, r.of.rows[r.low[j]].count)
}
func (r *hourRule) Swap(i, j int) {
	r.low[i], r.low[j] = r.low[j], r.low[i]
	r.of.rows[r.low[i]].place, r.of.rows[r.low[j]].place = int32(i), int32(j)
}

// Push isn't used, and Pop returns nil, because putting a number in an interface would allocate.
func (r *hourRule) Push(any) { panic("insert appends") }

func (r *hourRule) Pop() any {
	r.low = r.low[:len(r.low)-1]
	return nil
}

// subject returns the hash of a subject.
func (k *key) subject(s []byte) uint64 { return siphash.Hash(k.k0^subjectHash, k.k1, s) }

// subjectHash keeps hashes of subjects apart from those of clients.
const subjectHash = 0x7375626a
