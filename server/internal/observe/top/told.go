package top

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"time"

	"github.com/weirhq/weir"
)

// question is what somebody wants to know of the last hour: of all rules, without their keys, or else
type question struct {
	rule   string  // of that one, with its keys
	client *uint32 // of one client, by its fingerprint: its rules, and who it is
}

// told is what one node answers. Each rule, key and name is a line of its own: see [packer].
type told struct {
	Node  string     `json:"node"`
	At    time.Time  `json:"at"`    // by the clock that nodes share
	Since time.Time  `json:"since"` // likewise: it remembers nothing of before
	Slot  uint32     `json:"slot"`
	OneIn float64    `json:"one_in"` // the most that a decision of the hour stood for
	Bytes int        `json:"bytes"`  // of its memory
	Rules []toldRule `json:"-"`
	Left  int        `json:"left,omitempty"` // rules that there was no room for
	Names []toldName `json:"-"`              // of clients that have the fingerprint
}

type toldRule struct {
	Rule    string    `json:"rule"`
	Sum     sum       `json:"sum"`
	Kept    uint64    `json:"kept"`            // requests of keys that are remembered
	Lacks   uint64    `json:"lacks,omitempty"` // requests, at most, of a key that isn't among the rows
	Would   uint64    `json:"would"`
	Hit     time.Time `json:"hit,omitzero"`
	Refusal time.Time `json:"refusal,omitzero"`
	Keys    sketched  `json:"keys"`
	Above   sketched  `json:"above"` // those of which at least half of the limit is used
	Past    []byte    `json:"past,omitempty"`
	Rows    []toldRow `json:"-"` // the busiest
}

// sum is of the hour.
type sum struct {
	Requests uint64 `json:"requests"`
	Refused  uint64 `json:"refused"`
}

func (s *sum) add(o sum) {
	s.Requests += o.Requests
	s.Refused += o.Refused
}

type toldRow struct {
	ID      uint64 `json:"id"`
	Client  string `json:"client"` // masked
	Kind    string `json:"kind"`
	Sum     sum    `json:"sum"`
	Used    uint8  `json:"used"`
	At      int64  `json:"at"`                // ms since 1970: its last request
	Special bool   `json:"special,omitempty"` // it has numbers of its own
	LowBy   uint64 `json:"low_by,omitempty"`  // requests, at most, that are forgotten
	Past    []byte `json:"past"`              // entries behind the slot of the first, in four bytes
}

// toldName is who has a fingerprint.
type toldName struct {
	ID     uint64 `json:"id"`
	Kind   string `json:"kind"`
	Client string `json:"client"` // masked
	// Sealed is the client itself, for nodes with the same tokens. None means that it isn't kept as a whole, or that there are no tokens.
	Sealed []byte `json:"sealed,omitempty"`
	value  string
}

// room is how much a node may tell.
type room struct {
	bytes int // of histories
	ids   int // of sketches
}

// alone is the room of a node that tells itself.
var alone = room{1 << 30, 1 << 30}

// tell answers a question of what this node remembers. The lock is held for one rule at a time.
func (t *Top) tell(q question, node string, most room) told {
	t.mu.Lock()
	t.drainLocked()
	out := told{Node: node, At: t.now, Slot: t.hour.slot, Since: t.hour.since, OneIn: t.hour.rarest(), Bytes: t.hour.bytes()}
	var rules []string
	for _, r := range t.hour.rules {
		if r != nil && (q.rule == "" || r.id == q.rule) {
			rules = append(rules, r.id)
		}
	}
	if q.client != nil {
		out.Names = t.namesLocked(*q.client)
	}
	t.mu.Unlock()
	slices.Sort(rules)
	most.ids = max(8, most.ids/max(1, 2*len(rules)))
	bare := most.bytes / 2 / perLine
	for _, id := range rules {
		t.mu.Lock()
		if i, there := t.hour.byID[id]; there {
			if r := t.hour.rules[i]; q.client != nil {
				t.hour.tellClient(r, *q.client, &most, &bare, t.now, &out)
			} else {
				out.Rules = append(out.Rules, t.hour.tell(r, q.rule != "", &most, t.now))
			}
		}
		t.mu.Unlock()
	}
	out.Names = distinct(out.Names)
	return out
}

// distinct has each client once, with what it is if that is known.
func distinct(names []toldName) (out []toldName) {
	for _, n := range names {
		i := slices.IndexFunc(out, func(o toldName) bool { return o.ID == n.ID })
		switch {
		case i < 0:
			out = append(out, n)
		case out[i].value == "":
			out[i] = n
		}
	}
	return out[:min(len(out), mostNames)]
}

// mostNames is how many clients of a fingerprint are told. Two are too many.
const mostNames = 8

// tell tells of a rule, with or without its keys.
func (h *hour) tell(r *hourRule, whole bool, most *room, now time.Time) toldRule {
	out := h.sum(r)
	type one struct {
		*row
		sum sum
	}
	rows := make([]one, 0, len(r.low))
	var keys, above []uint32
	for _, i := range r.low {
		k := one{row: &h.rows[i]}
		if k.sum = h.sumOf(&k.series); k.sum.Requests == 0 {
			continue
		}
		out.Kept += k.sum.Requests
		rows = append(rows, k)
		name := uint32(k.id>>32) &^ 3
		keys = append(keys, name)
		if used := h.usedNow(r, k.row, now); used >= usedAll/2 {
			above = append(above, name|classOf(used))
		}
	}
	out.Kept = min(out.Kept, out.Sum.Requests) // each was rounded
	out.Keys, out.Above = sketchOf(keys, most.ids), sketchOf(above, most.ids)
	if !whole {
		return out
	}
	out.Past = pastOf(&h.cells, &r.total, h.oldest())
	slices.SortFunc(rows, func(a, b one) int {
		return cmp.Or(cmp.Compare(b.sum.Requests, a.sum.Requests), cmp.Compare(a.id, b.id))
	})
	var text [subjectBytes]byte
	out.Lacks = out.forgotten(uint64(h.lost(r)))
	listed := uint64(0)
	for _, k := range rows {
		row, fits := h.tellRow(r, k.row, h.who(r, k.row, text[:0]), most, now)
		if !fits {
			out.Lacks = out.Sum.Requests - min(listed, out.Sum.Requests)
			break // the others have sent less
		}
		listed += row.Sum.Requests
		row.LowBy = out.forgotten(row.LowBy)
		out.Rows = append(out.Rows, row)
	}
	return out
}

// forgotten is how many requests of a key can be forgotten, if there may be so many by another count: no more than no key has.
func (r *toldRule) forgotten(n uint64) uint64 { return min(n, r.Sum.Requests-r.Kept) }

// tellClient tells of a client in a rule, if it is there, and who it is. Of a rule that has forgotten keys it tells in any case, if
// there is room for so many bare ones: the client may be one of them.
func (h *hour) tellClient(r *hourRule, print uint32, most *room, bare *int, now time.Time, all *told) {
	var out toldRule
	var text [subjectBytes]byte
	for _, i := range r.low {
		k := &h.rows[i]
		who := h.who(r, k, text[:0])
		known := uint32(who.id>>32) == print
		if known && len(who.parts) != 1 {
			all.Names = append(all.Names, toldName{ID: who.id, Kind: who.kind, Client: who.shown})
		}
		for _, part := range who.parts {
			if id := h.key.hash(part); uint32(id>>32) == print {
				all.Names = append(all.Names, toldName{ID: id, Kind: part.Kind, Client: part.Shown(), value: part.Value})
				known = true
			}
		}
		if !known {
			continue
		}
		if out.Rule == "" {
			out = h.sumKept(r)
		}
		if row, fits := h.tellRow(r, k, who, most, now); fits {
			row.LowBy = out.forgotten(row.LowBy)
			out.Rows = append(out.Rows, row)
		}
	}
	if out.Rule == "" && h.lost(r) > 0 {
		if *bare--; *bare < 0 {
			all.Left++
			return
		}
		out = h.sumKept(r)
	}
	if out.Rule != "" {
		all.Rules = append(all.Rules, out)
	}
}

// sumKept sums a rule up, and what is remembered of its keys.
func (h *hour) sumKept(r *hourRule) toldRule {
	out := h.sum(r)
	for _, i := range r.low {
		out.Kept += h.sumOf(&h.rows[i].series).Requests
	}
	out.Kept = min(out.Kept, out.Sum.Requests) // each was rounded
	out.Lacks = out.forgotten(uint64(h.lost(r)))
	return out
}

// oldest is the first slot of the hour that the present one ends.
func (h *hour) oldest() uint32 { return h.slot - HourSlots + 1 }

// sum sums a rule up.
func (h *hour) sum(r *hourRule) toldRule {
	return toldRule{Rule: r.id, Hit: r.hit, Refusal: r.refusal, Sum: h.sumOf(&r.total), Would: h.sumOf(&r.would).Requests}
}

func (h *hour) sumOf(s *series) (out sum) {
	s.since(&h.cells, h.oldest(), func(t tick) { out.add(sum{t.requests, t.refused}) })
	return out
}

// tellRow tells of a key, if there is room for it.
func (h *hour) tellRow(r *hourRule, k *row, who person, most *room, now time.Time) (out toldRow, fits bool) {
	past := pastOf(&h.cells, &k.series, h.oldest())
	most.bytes -= len(past) + perTold
	return toldRow{
		ID: who.id, Client: who.shown, Kind: who.kind, Sum: h.sumOf(&k.series), Past: past,
		Used: h.usedNow(r, k, now), At: k.last(now).UnixMilli(), Special: who.special, LowBy: uint64(k.lost),
	}, most.bytes >= 0
}

// perTold is what a key takes beside its history, about.
const perTold = 100

// last is when the last request was.
func (k *row) last(now time.Time) time.Time {
	return now.Add(-time.Duration(uint32(now.UnixMilli())-k.at) * time.Millisecond)
}

// usedNow is how much of the limit is used, by what the last request was told. A bucket refills evenly from then on; a window is as full as
// it was, until it ends.
func (h *hour) usedNow(r *hourRule, k *row, now time.Time) uint8 {
	full, last := time.Unix(int64(k.full), 0), k.last(now)
	switch rule := h.known[r.id]; {
	case now.After(full):
		return 0
	case rule != nil && rule.Algorithm >= weir.FixedWindow || !full.After(last):
		return k.used
	}
	return uint8(math.Round(float64(k.used) * float64(full.Sub(now)) / float64(full.Sub(last))))
}

// pastOf is the series as nodes tell it.
func pastOf(c *cells, s *series, oldest uint32) (out []byte) {
	last := uint32(0)
	s.since(c, oldest, func(t tick) {
		gap := t.slot - last
		if out == nil {
			out = binary.BigEndian.AppendUint32(out, t.slot)
			gap = 0
		}
		out = appendEntry(out, gap, t)
		last = t.slot
	})
	return out
}

// readPast reads one.
func readPast(b []byte, tell func(tick)) bool {
	if len(b) == 0 {
		return true
	}
	return len(b) > 4 && readEntries(b[4:], binary.BigEndian.Uint32(b), tell)
}

// sketched are the lowest hashes of keys: as many are in the others, in proportion. All of them, if there are few.
type sketched struct {
	N   int      `json:"n"`
	Low []uint32 `json:"low,omitempty"`
}

func sketchOf(all []uint32, most int) sketched {
	slices.Sort(all)
	return sketched{len(all), all[:min(len(all), most, perRule)]}
}

// classOf is how much is used, in the two bits of a name that are free.
func classOf(used uint8) uint32 {
	switch {
	case used >= usedAll:
		return 3
	case used >= usedAll*4/5:
		return 2
	}
	return 1
}

// union counts the keys that are in any of the sketches, by their class, which is the highest that any has.
func union(all []sketched) (n [4]float64) {
	classes, bound := map[uint32]uint32{}, uint64(1)<<32
	for _, s := range all {
		if len(s.Low) < s.N {
			if len(s.Low) == 0 {
				bound = 0
				continue
			}
			bound = min(bound, uint64(s.Low[len(s.Low)-1]|3)+1)
		}
		for _, name := range s.Low {
			classes[name&^3] = max(classes[name&^3], name&3)
		}
	}
	for name, class := range classes {
		if uint64(name) < bound {
			n[class]++
		}
	}
	for i := range n {
		n[i] *= float64(1<<32) / float64(max(1, bound))
	}
	return n
}

// namesLocked are clients of the sketches that have a fingerprint.
func (t *Top) namesLocked(print uint32) (out []toldName) {
	for _, k := range []*sketch{&t.clients.requests, &t.clients.refused} {
		for _, e := range k.byLow {
			if uint32(e.id>>32) != print || e.kind == nobody {
				continue
			}
			n := toldName{ID: e.id, Kind: e.kind.String(), Client: e.client.String()}
			switch {
			case e.kind == ip:
				n.value = e.client.String()
			case !e.cut:
				n.value = string(e.text[:e.n])
			}
			out = append(out, n)
		}
	}
	return out
}
