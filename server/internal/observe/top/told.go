package top

import (
	"cmp"
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir"
)

// question is a question about the last hour. The zero value asks about all rules, without their
// keys.
type question struct {
	rule   string  // about this rule, with its keys
	client *uint32 // about the client with this fingerprint: its rules, and its identity
}

// told is the answer of one node. Each rule, key and name is a line of its own: see [packer].
type told struct {
	Node  string     `json:"node"`
	At    time.Time  `json:"at"`    // by the clock that nodes share
	Since time.Time  `json:"since"` // when the node began to remember, by the same clock
	Slot  uint32     `json:"slot"`
	OneIn float64    `json:"one_in"` // the highest weight of a decision in the hour
	Bytes int        `json:"bytes"`  // size of its memory
	Rules []toldRule `json:"-"`
	Left  int        `json:"left,omitempty"` // how many rules were left out for lack of room
	Names []toldName `json:"-"`              // of clients with the fingerprint
}

type toldRule struct {
	Rule    string    `json:"rule"`
	Sum     sum       `json:"sum"`
	Kept    uint64    `json:"kept"`            // requests of the keys that are remembered
	Lacks   uint64    `json:"lacks,omitempty"` // how many requests a key without a row may have made at most
	Would   uint64    `json:"would"`
	Hit     time.Time `json:"hit,omitzero"`
	Refusal time.Time `json:"refusal,omitzero"`
	Keys    sketched  `json:"keys"`
	Above   sketched  `json:"above"` // keys with at least half of the limit used
	Past    []byte    `json:"past,omitempty"`
	Rows    []toldRow `json:"-"` // the busiest
}

// sum counts requests over the hour.
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
	At      int64  `json:"at"`                // Unix milliseconds of its last request
	Special bool   `json:"special,omitempty"` // it has numbers of its own
	LowBy   uint64 `json:"low_by,omitempty"`  // how many of its requests may be forgotten at most
	Past    []byte `json:"past"`              // slot of the first entry in four bytes, and then the entries
}

// toldName is a client with the fingerprint that was asked about.
type toldName struct {
	ID     uint64 `json:"id"`
	Kind   string `json:"kind"`
	Client string `json:"client"` // masked
	// Sealed is the client's encrypted identity, for nodes with the same tokens. It is empty if the
	// identity isn't kept whole, or if there are no tokens.
	Sealed []byte `json:"sealed,omitempty"`
	value  string
}

// room is how much a node may still send.
type room struct {
	bytes int // of histories
	ids   int // of sketches
}

// alone is the room for an answer that isn't sent anywhere.
var alone = room{1 << 30, 1 << 30}

// tell answers a question from this node's memory. It holds the lock for one rule at a time.
func (t *Top) tell(q question, node string, most room) told {
	t.mu.Lock()
	t.drainLocked()
	out := told{Node: node, At: t.now, Slot: t.hour.slot, Since: t.hour.since, OneIn: t.hour.rarest(), Bytes: t.hour.bytes()}
	var rules []string
	for id := range t.hour.rules {
		if q.rule == "" || id == q.rule {
			rules = append(rules, id)
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
		switch r := t.hour.rules[id]; {
		case r == nil: // it was forgotten meanwhile
		case q.client != nil:
			t.hour.tellClient(r, *q.client, &most, &bare, t.now, &out)
		default:
			out.Rules = append(out.Rules, t.hour.tell(r, q.rule != "", &most, t.now))
		}
		t.mu.Unlock()
	}
	out.Names = distinct(out.Names)
	return out
}

// distinct returns each client once, with its identity if that is known.
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

// mostNames is how many clients with the same fingerprint are sent. Two are enough to be ambiguous.
const mostNames = 8

// tell describes a rule, with or without its keys.
func (h *hour) tell(r *hourRule, whole bool, most *room, now time.Time) toldRule {
	out := h.sum(r)
	type one struct {
		*row
		sum sum
	}
	rows := make([]one, 0, len(r.low))
	var keys, above []uint32
	for _, k := range r.low {
		k := one{k, h.sumOf(&k.series)}
		if k.sum.Requests == 0 {
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
	out.Past = r.total.past(h.oldest())
	slices.SortFunc(rows, func(a, b one) int {
		return cmp.Or(cmp.Compare(b.sum.Requests, a.sum.Requests), cmp.Compare(a.id, b.id))
	})
	out.Lacks = out.forgotten(uint64(h.lost(r)))
	listed := uint64(0)
	for _, k := range rows {
		row, fits := h.tellRow(r, k.row, h.who(r, k.row), most, now)
		if !fits {
			out.Lacks = out.Sum.Requests - min(listed, out.Sum.Requests)
			break // the remaining keys have fewer requests
		}
		listed += row.Sum.Requests
		row.LowBy = out.forgotten(row.LowBy)
		out.Rows = append(out.Rows, row)
	}
	return out
}

// forgotten caps how many requests of a key may have been forgotten at the number of the rule's
// requests that belong to no remembered key.
func (r *toldRule) forgotten(n uint64) uint64 { return min(n, r.Sum.Requests-r.Kept) }

// tellClient describes a client in a rule that counts it, and who it is. It also describes a rule
// that has forgotten keys, because the client may be one of them, as long as bare has room for such
// rules.
func (h *hour) tellClient(r *hourRule, print uint32, most *room, bare *int, now time.Time, all *told) {
	var out toldRule
	for _, k := range r.low {
		who := h.who(r, k)
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

// sumKept sums up a rule and its remembered keys.
func (h *hour) sumKept(r *hourRule) toldRule {
	out := h.sum(r)
	for _, k := range r.low {
		out.Kept += h.sumOf(&k.series).Requests
	}
	out.Kept = min(out.Kept, out.Sum.Requests) // each was rounded
	out.Lacks = out.forgotten(uint64(h.lost(r)))
	return out
}

// oldest returns the first slot of the hour that the current slot ends.
func (h *hour) oldest() uint32 { return h.slot - HourSlots + 1 }

// sum sums up a rule.
func (h *hour) sum(r *hourRule) toldRule {
	return toldRule{Rule: r.id, Hit: r.hit, Refusal: r.refusal, Sum: h.sumOf(&r.total), Would: h.sumOf(&r.would).Requests}
}

func (h *hour) sumOf(s *series) (out sum) {
	s.since(h.oldest(), func(t tick) { out.add(sum{t.requests, t.refused}) })
	return out
}

// tellRow describes a key if there is room for it.
func (h *hour) tellRow(r *hourRule, k *row, who person, most *room, now time.Time) (out toldRow, fits bool) {
	past := k.past(h.oldest())
	most.bytes -= len(past) + perTold
	return toldRow{
		ID: who.id, Client: who.shown, Kind: who.kind, Sum: h.sumOf(&k.series), Past: past,
		Used: h.usedNow(r, k, now), At: k.last(now).UnixMilli(), Special: who.special, LowBy: uint64(k.lost),
	}, most.bytes >= 0
}

// perTold is about how many bytes a key takes besides its history.
const perTold = 100

// last returns the time of the last request.
func (k *row) last(now time.Time) time.Time {
	return now.Add(-time.Duration(uint32(now.UnixMilli())-k.at) * time.Millisecond)
}

// usedNow estimates how much of the limit is used now, from what the last request saw: a bucket
// refills evenly, and a window stays as full as it was until it ends.
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

// sketched estimates a set of keys from its lowest hashes. A small set is complete.
type sketched struct {
	N   int      `json:"n"`
	Low []uint32 `json:"low,omitempty"`
}

func sketchOf(all []uint32, most int) sketched {
	slices.Sort(all)
	return sketched{len(all), all[:min(len(all), most, perRule)]}
}

// classOf returns how much is used as a class, for the two low bits of a hash.
func classOf(used uint8) uint32 {
	switch {
	case used >= usedAll:
		return 3
	case used >= usedAll*4/5:
		return 2
	}
	return 1
}

// union estimates how many keys any of the sketches has, by class. A key has the highest class that
// any sketch has for it.
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

// namesLocked returns the clients in the sketches that have a fingerprint.
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

// sealer encrypts the names of clients that nodes send each other through Redis. Whoever can read
// and write Redis can ask questions like a node, and knows the nodes' secret. So the encryption key
// is derived from what the nodes have in common outside of Redis: their admin tokens. Nodes that
// have no tokens in common don't learn each other's names.
type sealer struct {
	digest func() []byte // the digest of the tokens; nil, or returning nil, if there are none

	mu   sync.Mutex // guards what follows
	of   string     // the digest and the secret from which made is derived
	made cipher.AEAD
}

// guesses is how many hashes it takes to try a token on an encrypted name: some people choose
// tokens that can be guessed.
const guesses = 100_000

// box returns the cipher, or nil if there are no tokens. It takes a moment after tokens have
// changed.
func (s *sealer) box(k *key) cipher.AEAD {
	if s.digest == nil || k.secret == "" {
		return nil
	}
	digest := s.digest()
	if digest == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := string(digest) + k.secret; of != s.of {
		s.of, s.made = of, newBox(digest, k.secret)
	}
	return s.made
}

func newBox(digest []byte, salt string) cipher.AEAD {
	secret, err := pbkdf2.Key(sha256.New, string(digest), []byte("weir: names of clients"+salt), guesses, 32)
	if err != nil {
		panic(err) // 32 bytes are always possible
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		panic(err) // 32 bytes are a key
	}
	box, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return box
}

// seal encrypts the names of clients. Without a cipher, it sends none.
func (t *told) seal(box cipher.AEAD) {
	for i := range t.Names {
		if n := &t.Names[i]; n.value != "" && box != nil {
			nonce := make([]byte, box.NonceSize())
			_, _ = rand.Read(nonce) // never fails
			n.Sealed = box.Seal(nonce, nonce, []byte(n.value), nil)
		}
	}
}

// open decrypts the names. It ignores a name that doesn't match its hash: somebody may have moved
// an encrypted name to another client.
func (t *told) open(box cipher.AEAD, k *key) {
	for i := range t.Names {
		n := &t.Names[i]
		if box == nil || len(n.Sealed) < box.NonceSize() {
			continue
		}
		value, err := box.Open(nil, n.Sealed[:box.NonceSize()], n.Sealed[box.NonceSize():], nil)
		if err == nil && k.hash(Identity{n.Kind, string(value)}) == n.ID {
			n.value = string(value)
		}
	}
}
