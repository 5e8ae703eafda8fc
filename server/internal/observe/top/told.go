package top

import (
	"cmp"
	"crypto/cipher"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/weirhq/weir"
)

// told is the answer of one node. When it is sent, each rule, client and name is a line of its own: see told.packed.
type told struct {
	Node  string     `json:"node"`
	At    time.Time  `json:"at"`    // when the node answered, by the clock that nodes share
	Since time.Time  `json:"since"` // when the node began to count, by the clock that nodes share
	Slot  uint32     `json:"slot"`
	OneIn float64    `json:"one_in"` // the highest sampling weight of a decision in the time that the answer covers
	Bytes int        `json:"bytes"`  // how much memory the node uses for the hour, in bytes
	Rules []toldRule `json:"-"`
	Left  int        `json:"left,omitempty"` // how many rules were left out because there wasn't enough space
	Names []toldName `json:"-"`              // the clients that have the fingerprint in the question

	Clients hotList `json:"clients,omitzero"`
	Pairs   hotList `json:"pairs,omitzero"` // clients, each with a rule that decided their requests
}

// toldRule is a rule in an answer. Rates and Shadow are about the present, and the other fields are about the last
// hour.
type toldRule struct {
	Rule    string    `json:"rule"`
	Sum     sum       `json:"sum,omitzero"`
	Kept    uint64    `json:"kept"` // requests by keys that are remembered
	Would   uint64    `json:"would"`
	Hit     time.Time `json:"hit,omitzero"`
	Refusal time.Time `json:"refusal,omitzero"`
	Keys    sketched  `json:"keys,omitzero"`
	Above   sketched  `json:"above,omitzero"` // the keys that have used at least half of the limit
	Past    []byte    `json:"past,omitempty"`
	Rows    []toldRow `json:"-"` // the busiest keys
	Rates   Rates     `json:"rates,omitzero"`
	Shadow  float64   `json:"shadow,omitempty"` // per second; requests that the rule would have refused if it weren't in shadow
}

// sum has the numbers of requests in the last hour.
type sum struct {
	Requests uint64 `json:"requests"`
	Refused  uint64 `json:"refused"`
}

func (s *sum) add(o sum) {
	s.Requests += o.Requests
	s.Refused += o.Refused
}

// named is a client in the form in which nodes send it to each other.
type named struct {
	ID     uint64 `json:"id"`     // a keyed hash
	Client string `json:"client"` // masked
	Kind   string `json:"kind"`
}

func (n named) shown() Shown { return Shown{n.Client, fingerprint(n.ID), n.Kind} }

type toldRow struct {
	named
	Sum     sum    `json:"sum"`
	Used    uint8  `json:"used"`
	At      int64  `json:"at"`                // time of the last request, in Unix milliseconds
	Special bool   `json:"special,omitempty"` // an override in the rule gives the key its own limits
	Past    []byte `json:"past"`              // the number of the first slot in four bytes, followed by the entries
}

// toldName is a client that has the fingerprint in the question.
type toldName struct {
	named
	// Sealed is the client's identity, encrypted for nodes with the same admin tokens. It is empty if this node doesn't
	// know the whole identity, or has no admin tokens.
	Sealed []byte `json:"sealed,omitempty"`
	value  string
}

// alone is the maximum number of rules and keys in an answer that stays on this node: practically all.
const alone = 1 << 30

// packTold encodes an answer in at most the given number of bytes. If the answer is larger, it leaves out the clients
// and rules with the fewest requests.
func (t *Top) packTold(q question, node string, bytes int, box cipher.AEAD) ([]byte, error) {
	for most := hourRules; ; {
		out := t.tell(q, node, most)
		out.seal(box)
		b, weight, err := out.packed()
		if err != nil || len(b) <= bytes && weight <= unpacked*bytes {
			return b, err
		}
		if most == 0 {
			return nil, errTooLarge
		}
		longest := max(len(out.Rules), len(out.Clients.Hot), len(out.Pairs.Hot))
		for _, r := range out.Rules {
			longest = max(longest, len(r.Rows))
		}
		most = min(most, longest) / 2
	}
}

// tell answers a question from this node's memory, with at most most clients and rules. It holds the lock only for one
// rule at a time.
func (t *Top) tell(q question, node string, most int) told {
	t.mu.Lock()
	t.drainLocked()
	out := told{Node: node, At: t.now, Slot: t.hour.slot, Since: t.hour.since, OneIn: t.hour.rarest(), Bytes: t.hour.bytes()}
	var rules []string
	switch q.kind {
	case hotNow:
		t.tellHotLocked(&out, most)
	case ofRule:
		rules = []string{q.name}
	default:
		rules = slices.Collect(maps.Keys(t.hour.rules))
		out.Names = t.namesLocked(q)
	}
	t.mu.Unlock()
	for _, id := range rules {
		t.mu.Lock()
		if r := t.hour.rules[id]; r != nil { // the rule may have been forgotten in the meantime
			rule, names := t.hour.tell(r, q, most, max(8, 8*most/len(rules)), t.now)
			if q.kind != ofClient || len(rule.Rows) > 0 || rule.Kept < rule.Sum.Requests { // a forgotten key may be the client's
				out.Rules = append(out.Rules, rule)
			}
			out.Names = append(out.Names, names...)
		}
		t.mu.Unlock()
	}
	out.Names = distinct(out.Names)
	if len(out.Rules) > most {
		slices.SortFunc(out.Rules, func(a, b toldRule) int {
			return cmp.Or(cmp.Compare(min(1, len(b.Rows)), min(1, len(a.Rows))), cmp.Compare(b.Sum.Requests, a.Sum.Requests))
		})
		out.Left, out.Rules = len(out.Rules)-most, out.Rules[:most]
	}
	return out
}

// distinct returns each client once. If one of the client's names has its identity, it returns that name.
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

// mostNames is how many clients that have the same fingerprint are sent. Two would be enough to show that the
// fingerprint is ambiguous.
const mostNames = 8

// tell describes a rule. If the question is about the rule, that includes its busiest keys. If the question is about a
// client, it includes the client's keys and names. There are at most `most` keys, and at most `hashes` hashes of keys.
func (h *hour) tell(r *hourRule, q question, most, hashes int, now time.Time) (out toldRule, names []toldName) {
	out = toldRule{Rule: r.id, Hit: r.hit, Refusal: r.refusal, Sum: h.sumOf(&r.total), Would: h.sumOf(&r.would).Requests}
	var keys, above []uint32
	for _, k := range r.rows {
		sum, used := h.sumOf(&k.series), h.usedNow(r, k, now)
		if sum.Requests == 0 {
			continue
		}
		out.Kept += sum.Requests
		hash := uint32(k.id>>32) &^ 3
		keys = append(keys, hash)
		if used >= usedAll/2 {
			above = append(above, hash|classOf(used))
		}
		if q.kind == ofRules {
			continue
		}
		who := h.who(r, k)
		if q.kind == ofClient {
			found := who.names(q.print(), h.key)
			if len(found) == 0 {
				continue
			}
			names = append(names, found...)
		}
		out.Rows = append(out.Rows, toldRow{
			named: who.named, Sum: sum, Past: k.past(h.oldest()), Used: used, At: k.last(now).UnixMilli(),
			Special: who.special,
		})
	}
	out.Kept = min(out.Kept, out.Sum.Requests) // the two may have been rounded differently
	if q.kind == ofClient {
		return out, names
	}
	out.Keys, out.Above = sketchOf(keys, hashes), sketchOf(above, hashes)
	if q.kind == ofRule {
		out.Past = r.total.past(h.oldest())
		slices.SortFunc(out.Rows, func(a, b toldRow) int {
			return cmp.Or(cmp.Compare(b.Sum.Requests, a.Sum.Requests), cmp.Compare(a.ID, b.ID))
		})
	}
	out.Rows = out.Rows[:min(len(out.Rows), most)]
	return out, nil
}

// oldest returns the first slot of the hour, whose last slot is the current one.
func (h *hour) oldest() uint32 { return h.slot - HourSlots + 1 }

func (h *hour) sumOf(s *series) (out sum) {
	s.since(h.oldest(), func(t tick) { out.add(sum{t.requests, t.refused}) })
	return out
}

// last returns the time of the key's last request.
func (k *row) last(now time.Time) time.Time {
	return now.Add(-time.Duration(uint32(now.UnixMilli())-k.at) * time.Millisecond)
}

// usedNow estimates how much of the limit is used now, from how much was used after the last request. A bucket refills
// evenly, and the use of a window doesn't change until the window ends.
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

// sketched estimates a set of keys by the lowest hashes of keys in it. For a small set, the estimate is exact.
type sketched struct {
	N   int      `json:"n"`
	Low []uint32 `json:"low,omitempty"`
}

func sketchOf(all []uint32, most int) sketched {
	slices.Sort(all)
	return sketched{len(all), all[:min(len(all), most, perRule)]}
}

// classOf returns a class for how much of a limit is used. The two low bits of a hash store the class.
func classOf(used uint8) uint32 {
	switch {
	case used >= usedAll:
		return 3
	case used >= usedAll*4/5:
		return 2
	}
	return 1
}

// union estimates, for each class, how many keys are in at least one of the sketches. If a key is in several sketches,
// its highest class counts.
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
		for _, hash := range s.Low {
			classes[hash&^3] = max(classes[hash&^3], hash&3)
		}
	}
	for hash, class := range classes {
		if uint64(hash) < bound {
			n[class]++
		}
	}
	for i := range n {
		n[i] *= float64(1<<32) / float64(max(1, bound))
	}
	return n
}

// namesLocked returns the clients in the sketches whose fingerprint is the one in the question.
func (t *Top) namesLocked(q question) (out []toldName) {
	if q.kind != ofClient {
		return nil
	}
	print := q.print()
	for i := range t.clients {
		for _, e := range t.clients[i].entries {
			if uint32(e.id>>32) != print || e.kind == nobody {
				continue
			}
			n := toldName{named: e.named()}
			if !e.cut {
				n.value = e.identity().Value
			}
			out = append(out, n)
		}
	}
	return out
}
