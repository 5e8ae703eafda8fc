package top

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/siphash"
	"github.com/weirhq/weir/metrics"
)

const (
	// perRule is how many keys are remembered for a rule if there is enough memory.
	perRule = 1000
	// hourRules is how many rules are remembered. If there are more, those that were hit longest ago are forgotten.
	hourRules = 10_000
	// hourRows is the maximum number of keys in all rules together, and hourBytes is the maximum size of their
	// histories and subjects. Together with the keys and the rules themselves, that is at most 64 MiB.
	hourRows, hourBytes = 1 << 17, 32 << 20
	// subjectBytes is the maximum length of a subject that is kept as a whole. For a longer subject, only the hash, the
	// beginning and the end are kept.
	subjectBytes = 192
	// halved is the number of slots after which the weight of a request has halved, for finding the busiest keys.
	halved = HourSlots / 2
)

// hour remembers, for every rule, how many requests its busiest keys sent in the last hour, and how many of them were
// refused. A key is a client as the rule counts it. Each rule has a Space-Saving sketch, which finds the busiest keys:
// see [sketch].
//
// If memory runs out, all rules keep fewer keys, and the rules with the most keys lose the most.
type hour struct {
	key   *key
	slot  uint32 // the current slot
	base  uint32 // the slot whose requests have the weight 1 in the sketches
	rules map[string]*hourRule
	rows  int // number of keys in all rules
	held  int // bytes of all histories and subjects
	keep  int // how many keys each rule may have at present
	// since is when the hour began to remember requests.
	since time.Time
	// oneIn is, for each slot, the highest sampling weight of a decision. Slot s has the index s % HourSlots.
	oneIn [HourSlots]float32
	// evicted means that rules were forgotten, so a rule without an entry may have been used before.
	evicted bool
	set     *weir.RuleSet
	known   map[string]*weir.Rule // the rules of set, by id
	// weight is the present weight of a request in the sketches. It grows with each slot, so that older requests weigh
	// less in comparison.
	weight float64
}

type hourRule struct {
	id           string
	counted      string // the dimensions that the rule counts by. If they change, the rule's keys are forgotten
	hit, refusal time.Time
	totals       metrics.Total
	unknown      bool // totals isn't valid yet, because the total at the time when the rule was added is unknown
	rates        struct{ requests, refused, shadow history }
	total        series // all requests that the rule applied to
	would        series // requests that the rule would have refused if it weren't in shadow
	rows         map[uint64]*row
	lost         float64 // the highest count of a forgotten key, with which new keys start
}

type row struct {
	series
	count   float64 // number of requests; newer requests weigh more
	id      uint64
	subject []byte // the subject, or the parts of it that are kept
	full    uint32 // when the key's counter is full again, in Unix seconds
	at      uint32 // time of the last request: the low bits of the Unix time in milliseconds, which cover an hour
	cut     bool   // only parts of the subject are kept
	used    uint8  // how much of the limit was used after the last request, in units of 1/usedAll
}

const usedAll = 250

func newHour() hour {
	return hour{keep: perRule, weight: 1, rules: map[string]*hourRule{}}
}

// charged describes the charge of a decision to one rule.
type charged struct {
	rule     string
	from, to uint32 // the subject is written.text[from:to]
	id       uint64 // hash of a shortened subject; if the subject is kept whole, count computes the hash
	tokens   int64
	full     time.Duration // how long until the counter is full again
	cut      bool
	refused  bool
	takes    bool // the decision took tokens: no other rule refused the request
	would    bool // the rule is in shadow, and would have refused the request
	used     uint8
}

// of records the state of one limit after the decision.
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

// advance makes the current slot the newest one. If the clock was set back by more than drift can explain, it forgets
// the hour, because the times of the requests are unknown then.
func (h *hour) advance(now time.Time, key *key, set *weir.RuleSet) {
	slot := uint32(max(0, now.Unix()) / int64(HourSlot/time.Second))
	if key != h.key || slot+6 < h.slot || slot > h.slot+HourSlots {
		evicted := h.key != nil
		*h = newHour()
		h.key, h.slot, h.base, h.since, h.evicted = key, slot, slot, now, evicted
	}
	if set != h.set {
		h.set = set
		h.reread()
	}
	if slot <= h.slot {
		return
	}
	for s := h.slot + 1; s <= slot; s++ {
		h.oneIn[s%HourSlots] = 0
	}
	h.slot = slot
	if h.held < hourBytes*3/4 && h.rows < hourRows*3/4 {
		h.keep = min(perRule, h.keep+h.keep/8+1)
	}
	if h.slot-h.base > 64*halved {
		for _, r := range h.rules {
			r.lost /= h.weight
			for _, k := range r.rows {
				k.count /= h.weight
			}
		}
		h.base = h.slot
	}
	h.weight = math.Exp2(float64(h.slot-h.base) / halved)
	for _, r := range h.rules {
		for _, k := range r.rows {
			if k.slot+HourSlots <= h.slot {
				h.evict(r, k)
			}
		}
	}
}

// reread forgets the keys of rules whose dimensions have changed.
func (h *hour) reread() {
	rules := h.set.Rules().Rules
	h.known = make(map[string]*weir.Rule, len(rules))
	for i := range rules {
		h.known[rules[i].ID] = &rules[i]
	}
	for _, r := range h.rules {
		if by := h.countedBy(r.id); r.counted != by {
			h.shorten(r, 0)
			r.counted = by
		}
	}
}

// countedBy returns the dimensions that a rule counts by, as a text.
func (h *hour) countedBy(id string) string {
	k := h.known[id]
	switch {
	case k == nil:
		return ""
	case k.By == nil && k.Descriptor == nil:
		return "api_key"
	}
	return strings.Join(k.Descriptor, "\x00") + "\x00" + strings.Join(k.By, "\x00")
}

// find returns the entry of a rule. If there is none, it adds one.
func (h *hour) find(id string) *hourRule {
	r := h.rules[id]
	if r == nil {
		if len(h.rules) >= hourRules {
			h.forgetRules()
		}
		r = &hourRule{id: strings.Clone(id), counted: h.countedBy(id), unknown: h.evicted, rows: map[uint64]*row{}}
		h.rules[r.id] = r
	}
	return r
}

// forgetRules forgets a tenth of the rules, those that were hit longest ago. It forgets many at a time because finding
// them is slow.
func (h *hour) forgetRules() {
	h.evicted = true
	oldest := slices.SortedFunc(maps.Values(h.rules), func(a, b *hourRule) int { return a.hit.Compare(b.hit) })
	for _, r := range oldest[:(len(oldest)+9)/10] {
		h.shorten(r, 0)
		h.held -= cap(r.total.entries) + cap(r.would.entries)
		delete(h.rules, r.id)
	}
}

// use records how often a rule has been used since the node was started. In rates, the increase since the last call
// counts as requests of the given slot. It never evicts a rule, because a rule that is in use is also hit.
func (h *hour) use(id string, t metrics.Total, slot int64, now time.Time) {
	if h.rules[id] == nil && len(h.rules) >= hourRules {
		return
	}
	r := h.find(id)
	was := r.totals
	switch r.totals = t; {
	case r.unknown:
		r.unknown = false
		return // most of these requests may be older than the slot
	case t.Decisions < was.Decisions:
		was = metrics.Total{} // the rule was removed and added again, so its total has started over at 0
	}
	if t.Decisions > was.Decisions || t.Events > was.Events {
		r.hit = now
	}
	if t.Refusals > was.Refusals || t.Shadow > was.Shadow {
		r.refusal = now
	}
	r.rates.requests.add(slot, float64(t.Decisions-was.Decisions))
	r.rates.refused.add(slot, float64(t.Refusals-min(was.Refusals, t.Refusals)))
	r.rates.shadow.add(slot, float64(t.Shadow-min(was.Shadow, t.Shadow)))
}

// count counts a decision for one of the rules that it was charged to.
func (h *hour) count(c *charged, subject []byte, weight float64, now time.Time) {
	if h.held >= hourBytes || h.rows >= hourRows {
		h.shrink()
	}
	r := h.find(c.rule)
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
		r.would.add(&h.held, h.slot, amount{requests: weight})
	}
	r.total.add(&h.held, h.slot, n)
	id := c.id
	if !c.cut {
		id = h.key.subject(subject)
	}
	k := r.rows[id]
	if k == nil {
		k = h.insert(r, id, subject, c.cut)
	}
	k.add(&h.held, h.slot, n)
	// Decisions from different cores arrive out of order. If several are from the same millisecond, keep the highest
	// use.
	if at := uint32(now.UnixMilli()); k.at != at || c.used >= k.used {
		k.used, k.at, k.full = c.used, at, uint32(now.Add(max(0, c.full)+time.Second-1).Unix())
	}
	k.count += weight * h.weight
}

// insert adds a row for a new key. If the rule already has as many keys as it may have, insert first forgets a quarter
// of them, because finding the lowest is slow.
func (h *hour) insert(r *hourRule, id uint64, subject []byte, cut bool) *row {
	if len(r.rows) >= h.keep {
		h.shorten(r, h.keep-max(1, h.keep/4))
	}
	k := &row{id: id, count: r.lost, cut: cut, subject: slices.Clone(subject)}
	r.rows[id] = k
	h.rows++
	h.held += cap(k.subject)
	return k
}

// evict forgets a key of a rule. It overwrites the subject, so that no parts of API keys stay in memory.
func (h *hour) evict(r *hourRule, k *row) {
	delete(r.rows, k.id)
	if k.slot+HourSlots > h.slot {
		r.lost = max(r.lost, k.count)
	}
	h.rows--
	h.held -= cap(k.subject) + cap(k.entries)
	clear(k.subject)
}

// shorten forgets the keys of a rule that have the lowest counts, until left keys remain.
func (h *hour) shorten(r *hourRule, left int) {
	if len(r.rows) <= left {
		return
	}
	low := slices.SortedFunc(maps.Values(r.rows), func(a, b *row) int { return cmp.Compare(a.count, b.count) })
	for _, k := range low[:len(low)-left] {
		h.evict(r, k)
	}
}

// shrink lowers the number of keys per rule until a sixteenth of the memory is free.
func (h *hour) shrink() {
	for h.held > hourBytes*15/16 || h.rows > hourRows*15/16 {
		if h.keep == 1 {
			h.forgetRules()
			continue
		}
		h.keep = max(1, h.keep-h.keep/8-1)
		for _, r := range h.rules {
			h.shorten(r, h.keep)
		}
	}
}

// rarest returns the highest sampling weight of a decision in the last hour.
func (h *hour) rarest() float64 { return max(1, float64(slices.Max(h.oneIn[:]))) }

// bytes returns how much memory the hour uses.
func (h *hour) bytes() int {
	const perRow, perRule = 48, 896 // sizes of a row in the map and the heap, and of a rule with its name
	return h.held + h.rows*(int(unsafe.Sizeof(row{}))+perRow) + len(h.rules)*perRule
}

func (k *key) subject(s []byte) uint64 { return siphash.Hash(k.k0^subjectHash, k.k1, s) }

// subjectHash makes the hashes of subjects differ from those of clients.
const subjectHash = 0x7375626a
