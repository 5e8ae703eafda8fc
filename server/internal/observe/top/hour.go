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
	// perRule is how many keys of a rule are remembered, if there is room.
	perRule = 1000
	// hourRules is how many rules are. Beyond, those that were hit the longest ago make way.
	hourRules = 10_000
	// hourRows and hourCells bound the memory of all of them together, whatever rules and keys there are: 8 and 44 MiB. With the index of
	// rows and what is kept of rules it is 64 MiB at most.
	hourRows, hourCells = 1 << 17, 44 << 20 / int32(unsafe.Sizeof(cell{}))
	// subjectBytes is how much of a subject is kept. A longer one is known by its hash, and by how it begins and ends.
	subjectBytes = 192
	// spareCells and spareRows are more than one decision can need.
	spareCells, spareRows = 64, 16
	// halved is after how many slots a request counts half as much for who the busiest are.
	halved = HourSlots / 2
)

// hour remembers, of every rule, how many requests its busiest keys made and had refused in the last hour. A key is what the rule counts
// by. Who the busiest are is told by a Space-Saving sketch for each rule, as for clients: see [sketch].
//
// If the memory is used up, all rules keep fewer keys; those that have the most lose the most.
type hour struct {
	key   *key
	slot  uint32 // that runs
	base  uint32 // the slot in which a request counts 1 for the sketches
	rules []*hourRule
	byID  map[string]int32 // places in rules
	rows  []row
	free  int32 // a chain of rows through place, or -1
	used  int32 // rows
	keep  int   // keys of a rule, at present
	index map[rowName]int32
	cells cells
	sweep int32 // the row that is looked at next
	// since is when it began to remember.
	since time.Time
	// oneIn is the most that one decision stood for, by slot: of slot s it is at s % HourSlots.
	oneIn [HourSlots]float32
	set   *weir.RuleSet
	known map[string]*weir.Rule // of the set
	// weight is what a request counts now for who the busiest are: the older ones count less in comparison.
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
	counted      string // what it counts by, as text: keys of another are forgotten
	hit, refusal time.Time
	total        series // of all requests that it applied to, whoever made them
	would        series // what it would have refused, in shadow
	low          []int32
	// lost is the highest count of a key that was forgotten, and forgot the slot in which one last was that had sent something within the hour.
	lost   float64
	forgot uint32
}

// row is a key of a rule. It has no pointers.
type row struct {
	series
	id    uint64
	count float64 // of the sketch
	full  uint32  // when its counter is full again, in seconds since 1970
	text  int32   // its subject, or as much of it as is kept
	lost  float32 // requests, at most, that it may have made before it was here
	place int32   // among the rows of the rule, by count; of a free row, the next one
	at    uint32  // ms, of the last request: the low bits of the time since 1970, of which an hour needs few
	rule  int16
	cut   bool  // only a part of the subject is kept
	used  uint8 // of its limit, after its last request, in parts of usedAll
}

const usedAll = 250

func newHour() hour {
	return hour{free: -1, keep: perRule, weight: 1, byID: map[string]int32{}, index: map[rowName]int32{}, cells: cells{most: hourCells}}
}

// charged is a rule that a decision was charged to.
type charged struct {
	rule     string
	from, to uint32 // of the subject, in the text of the lane
	id       uint64 // of a subject that is cut; else it is made later
	tokens   int64
	full     time.Duration // until the counter is full again
	cut      bool
	refused  bool
	takes    bool // tokens: no other rule refused it
	would    bool // have refused it, in shadow
	used     uint8
}

// of notes how a limit stands after the decision.
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

// advance begins the slot that has begun meanwhile. A clock that was set back by more than it can drift takes what was remembered with it:
// nobody could tell when that was.
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
	// In as many steps as an hour has slots all rows are looked at, and there are more steps.
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

// reread forgets the keys of rules that count by something else by now.
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

// countedBy is what a rule counts by, as text.
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

// find returns a rule's place.
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

// forgetRules makes room for others, a tenth at a time, so that not every new one has to look for the oldest.
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
	// What different cores have written down isn't in the order in which it happened: of what came at once, the most that was used stands.
	if at := uint32(now.UnixMilli()); k.at != at || c.used >= k.used {
		k.used, k.at, k.full = c.used, at, uint32(now.Add(max(0, c.full)+time.Second-1).Unix())
	}
	k.count += weight * h.weight
	heap.Fix(r, int(k.place))
}

// insert makes a row for a key that has none. It takes the place of the key with the lowest count, if there is no other, and counts on from
// there.
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
		if len(h.rows) == cap(h.rows) { // append might take more than there may be
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

// shorten forgets the keys of a rule that have sent the least, until so many are left.
func (h *hour) shorten(r *hourRule, left int) {
	for len(r.low) > left {
		h.evict(r, 0)
	}
}

// shrink has all rules keep fewer keys, until a sixteenth of the memory is free.
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

// lost is how many requests of the hour a key of a rule can have made and be forgotten. The oldest of them count a quarter of what they
// would now.
func (h *hour) lost(r *hourRule) float32 {
	if r.forgot == 0 || r.forgot+HourSlots <= h.slot {
		return 0
	}
	return float32(math.Ceil(r.lost / h.weight * (1 << (HourSlots / halved))))
}

// rarest is the most that one decision of the hour stood for.
func (h *hour) rarest() float64 { return max(1, float64(slices.Max(h.oneIn[:]))) }

// bytes is the memory that it holds.
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

// Push isn't used, and Pop returns nothing: a number in an interface would be allocated.
func (r *hourRule) Push(any) { panic("insert appends") }

func (r *hourRule) Pop() any {
	r.low = r.low[:len(r.low)-1]
	return nil
}

// subject is the hash of a subject.
func (k *key) subject(s []byte) uint64 { return siphash.Hash(k.k0^subjectHash, k.k1, s) }

// subjectHash tells hashes of subjects from those of clients.
const subjectHash = 0x7375626a
