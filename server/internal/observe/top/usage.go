package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Hour answers questions about the last hour, on this node and those that can be asked.
type Hour struct {
	top    *Top
	node   string
	shared *Shared // nil if there are no other nodes
	// merging is held while answers are combined: some have a million numbers.
	merging sync.Mutex
}

// NewHour makes an Hour over a node's memory. Shared is nil if there are no other nodes.
func NewHour(t *Top, node string, shared *Shared) *Hour {
	return &Hour{top: t, node: node, shared: shared}
}

// Span says which time an answer covers, and which nodes.
type Span struct {
	SlotSeconds float64   `json:"slot_seconds"` // that a number of a history stands for
	Slots       int       `json:"slots"`
	From        time.Time `json:"from"` // when the first slot began
	At          time.Time `json:"at"`   // within the last slot, which isn't over
	Asked
	first uint32 // slot
}

// Asked says which nodes an answer covers.
type Asked struct {
	Nodes        []Node   `json:"nodes"`
	NodesMissing []string `json:"nodes_missing"`
	NodesGone    []Gone   `json:"nodes_gone"`        // nodes that ended within the hour; what they had counted is lost
	Partial      string   `json:"partial,omitempty"` // why others may be missing
	// WholeSince is when the newest node began to count, or when the last of the nodes in NodesGone
	// ended: earlier requests may be missing. It is nil while answers of live nodes are missing.
	WholeSince *time.Time `json:"whole_since"`
}

// Past is the number of requests and refusals in each slot, the newest last.
type Past struct {
	Requests []uint64 `json:"requests"`
	Refused  []uint64 `json:"refused"`
}

func newPast() Past { return Past{make([]uint64, HourSlots), make([]uint64, HourSlots)} }

// HourOfRules describes every rule over the last hour.
type HourOfRules struct {
	Span
	Bytes int        `json:"bytes"` // memory that the answering node uses for it
	Rules []HourRule `json:"rules"`
}

// HourRule describes a rule over the last hour.
type HourRule struct {
	Rule        string     `json:"rule"`
	Requests    uint64     `json:"requests"`     // to which the rule applied, whether it bound or not
	Refused     uint64     `json:"refused"`      // by this rule
	WouldRefuse uint64     `json:"would_refuse"` // in shadow, or as a candidate
	LastHit     *time.Time `json:"last_hit"`
	LastRefusal *time.Time `json:"last_refusal"`
	Keys        int        `json:"keys"` // that are remembered
	Above50     int        `json:"above_50"`
	Above80     int        `json:"above_80"`
	Above100    int        `json:"above_100"`
	Coverage    float64    `json:"coverage"` // the share of the requests that those keys made
}

// HourOfRule is a rule with its keys.
type HourOfRule struct {
	Span
	HourRule
	Series  Past         `json:"series"`
	Clients []HourClient `json:"clients"`
}

// HourClient is a key of a rule: the client as the rule counts it.
type HourClient struct {
	Client      string `json:"client"` // masked
	Fingerprint string `json:"fingerprint"`
	Kind        string `json:"kind"`
	HourUse
}

// HourUse tells how a client used a rule.
type HourUse struct {
	Requests uint64  `json:"requests"`
	Refused  uint64  `json:"refused"`
	LowBy    uint64  `json:"low_by"` // how many requests may be missing at most, because the key was forgotten for a while
	Used     float64 `json:"used"`   // share of the limit, as of its last request; 0 once the counter is full again
	History  Past    `json:"history"`
}

// HourOfClient is a client in the rules that count by it.
type HourOfClient struct {
	Span
	Client      string         `json:"client"` // masked
	Fingerprint string         `json:"fingerprint"`
	Kind        string         `json:"kind"`
	Rules       []HourClientIn `json:"rules"`
	Coverage    float64        `json:"coverage"` // share of these rules' requests that the remembered keys made
}

// HourClientIn is a client in one rule.
type HourClientIn struct {
	Rule string `json:"rule"`
	HourUse
}

// ask asks this node and the others. It fails if the others have too many questions to answer.
func (h *Hour) ask(ctx context.Context, q question) ([]told, Span, error) {
	all := []told{h.top.tell(q, h.node, alone)}
	s := Span{SlotSeconds: HourSlot.Seconds(), Slots: HourSlots, Asked: Asked{NodesMissing: []string{}, NodesGone: []Gone{}}, At: all[0].At.UTC(), first: all[0].Slot - HourSlots + 1}
	s.From = time.Unix(int64(s.first)*int64(HourSlot/time.Second), 0).UTC()
	if h.shared != nil {
		others := h.shared.askOthers(ctx, q)
		if others.err == ErrBusy {
			return nil, s, ErrBusy
		}
		all = append(all, others.all...)
		s.NodesMissing, s.Partial = append(s.NodesMissing, others.missing...), partial(others.err, len(all))
		if len(others.missing) > 0 && s.Partial == "" {
			s.Partial = fmt.Sprintf("%s didn't answer in time: they may hang, run another release, or have other questions to answer", strings.Join(others.missing[:min(5, len(others.missing))], ", "))
		}
		s.NodesGone = append(s.NodesGone, h.shared.roster.gone(s.At)...)
	}
	for i, t := range all {
		if t.Since.IsZero() {
			t.Since = t.At // the node's release doesn't send it
		}
		if t.Left > 0 && s.Partial == "" {
			s.Partial = fmt.Sprintf("%s has more rules than it can tell at once: the %d that are used the least aren't in this", t.Node, t.Left)
		}
		s.Nodes = append(s.Nodes, Node{t.Node, i == 0, max(0, s.At.Sub(t.At).Milliseconds()), t.OneIn, t.Since.UTC().Truncate(time.Second)})
	}
	s.weigh()
	return all, s, nil
}

// weigh sets WholeSince.
func (s *Span) weigh() {
	if s.Partial != "" || len(s.NodesMissing) > 0 {
		return
	}
	whole := s.From
	for _, n := range s.Nodes {
		if n.Since.After(whole) {
			whole = n.Since
		}
	}
	for _, g := range s.NodesGone {
		if g.Seen.After(whole) {
			whole = g.Seen
		}
	}
	s.WholeSince = &whole
}

// Rules describes every rule over the last hour.
func (h *Hour) Rules(ctx context.Context) (HourOfRules, error) {
	all, span, err := h.ask(ctx, question{})
	if err != nil {
		return HourOfRules{}, err
	}
	h.merging.Lock()
	defer h.merging.Unlock()
	parts := map[string][]*toldRule{}
	for i := range all {
		for j := range all[i].Rules {
			r := &all[i].Rules[j]
			parts[r.Rule] = append(parts[r.Rule], r)
		}
	}
	out := HourOfRules{Span: span, Bytes: all[0].Bytes, Rules: []HourRule{}}
	for id, p := range parts {
		if id != "" {
			out.Rules = append(out.Rules, mergeRule(id, p, span.sampled()))
		}
	}
	slices.SortFunc(out.Rules, func(a, b HourRule) int { return strings.Compare(a.Rule, b.Rule) })
	return out, nil
}

// mergeRule combines what several nodes send about a rule.
func mergeRule(id string, parts []*toldRule, sampled bool) HourRule {
	out := HourRule{Rule: id}
	kept := uint64(0)
	var keys, above []sketched
	for _, p := range parts {
		out.Requests += p.Sum.Requests
		out.Refused += p.Sum.Refused
		out.WouldRefuse += p.Would
		out.LastHit, out.LastRefusal = later(out.LastHit, p.Hit), later(out.LastRefusal, p.Refusal)
		kept += p.Kept
		keys, above = append(keys, p.Keys), append(above, p.Above)
	}
	n := union(above)
	out.Keys = int(math.Round(union(keys)[0]))
	out.Above100 = int(math.Round(n[3]))
	out.Above80 = int(math.Round(n[2] + n[3]))
	out.Above50 = int(math.Round(n[1] + n[2] + n[3]))
	out.Coverage = coverage(kept, out.Requests, sampled)
	return out
}

// coverage returns a share, rounded down so that 1 means all. If decisions were sampled, keys may
// be missing altogether.
func coverage(kept, all uint64, sampled bool) float64 {
	switch share := math.Floor(min(1, float64(kept)/float64(max(1, all)))*1000) / 1000; {
	case all == 0:
		return 1
	case sampled:
		return min(share, 0.999)
	default:
		return share
	}
}

// sampled reports whether any node sampled decisions.
func (s *Span) sampled() bool {
	return slices.ContainsFunc(s.Nodes, func(n Node) bool { return n.SampledOneIn > 1 })
}

// mergedKeys is how many keys of a rule an answer has at most.
const mergedKeys = 2000

// merged is a key of a rule, over all nodes.
type merged struct {
	toldRow
	pasts [][]byte
	lowBy uint64
}

// mergeRows combines the rows of each key, and returns the keys with the most requests.
func mergeRows(parts []*toldRule) []*merged {
	byID := map[uint64]*merged{}
	lacks := uint64(0)
	for _, p := range parts {
		lacks += p.Lacks
	}
	for _, p := range parts {
		for i := range p.Rows {
			r := &p.Rows[i]
			m := byID[r.ID]
			if m == nil {
				m = &merged{toldRow: *r, lowBy: lacks}
				m.Sum = sum{}
				byID[r.ID] = m
			}
			m.Sum.add(r.Sum)
			if r.At > m.At {
				m.Used, m.At = r.Used, r.At
			}
			m.Special = m.Special || r.Special
			m.pasts = append(m.pasts, r.Past)
			m.lowBy += r.LowBy - min(p.Lacks, m.lowBy)
		}
	}
	all := make([]*merged, 0, len(byID))
	for _, m := range byID {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *merged) int { return a.compare(b, false) })
	return all[:min(len(all), mergedKeys)]
}

func (m *merged) compare(o *merged, refused bool) int {
	if refused {
		return cmp.Or(cmp.Compare(o.Sum.Refused, m.Sum.Refused), m.compare(o, false))
	}
	return cmp.Or(cmp.Compare(o.Sum.Requests, m.Sum.Requests), cmp.Compare(m.ID, o.ID))
}

// addTo adds histories to a Past.
func (s *Span) addTo(p *Past, histories ...[]byte) {
	for _, b := range histories {
		readPast(b, func(t tick) {
			if i := int64(t.slot) - int64(s.first); i >= 0 && i < HourSlots {
				p.Requests[i] += t.requests
				p.Refused[i] += t.refused
			}
		})
	}
}

func usedShare(used uint8) float64 { return math.Round(float64(used)/usedAll*1000) / 1000 }

// Rule describes one rule over the last hour, with the keys that sent the most or were refused the
// most.
func (h *Hour) Rule(ctx context.Context, q Query) (HourOfRule, error) {
	all, span, err := h.ask(ctx, question{rule: q.Rule})
	if err != nil {
		return HourOfRule{}, err
	}
	h.merging.Lock()
	defer h.merging.Unlock()
	parts := partsOf(all, q.Rule)
	out := HourOfRule{Span: span, HourRule: mergeRule(q.Rule, parts, span.sampled()), Series: newPast(), Clients: []HourClient{}}
	for _, p := range parts {
		span.addTo(&out.Series, p.Past)
	}
	rows, kept := mergeRows(parts), uint64(0)
	for _, m := range rows {
		kept += m.Sum.Requests
	}
	out.Coverage = coverage(kept, out.Requests, span.sampled())
	if q.Refused {
		slices.SortFunc(rows, func(a, b *merged) int { return a.compare(b, true) })
	}
	for _, m := range rows[:min(len(rows), q.K)] {
		c := HourClient{m.Client, fingerprint(m.ID), m.Kind, HourUse{m.Sum.Requests, m.Sum.Refused, m.lowBy, usedShare(m.Used), newPast()}}
		span.addTo(&c.History, m.pasts...)
		out.Clients = append(out.Clients, c)
	}
	return out, nil
}

func partsOf(all []told, rule string) (parts []*toldRule) {
	for i := range all {
		for j := range all[i].Rules {
			if r := &all[i].Rules[j]; r.Rule == rule {
				parts = append(parts, r)
			}
		}
	}
	return parts
}

// Errors for a fingerprint that doesn't lead to one client.
var (
	ErrUnknownClient   = errors.New("no node remembers a client with this fingerprint: paste the key")
	ErrUnaskedClient   = errors.New("this node doesn't remember a client with this fingerprint, and not all others could be asked: paste the key")
	ErrAmbiguousClient = errors.New("several clients have this fingerprint: paste the key")
	ErrLongClient      = errors.New("the key is too long to be kept as a whole: paste the key")
	ErrSealedClient    = errors.New("another node remembers this client, and tells its key only to nodes with the same admin tokens, if it isn't too long: paste the key, or ask that node")
	ErrFingerprint     = errors.New("a fingerprint is 8 hexadecimal digits, such as 1a2b3c4d")
)

// Client describes a client in the rules that count by it. The client is who, or the one with the
// fingerprint.
func (h *Hour) Client(ctx context.Context, who Identity, print string) (HourOfClient, Identity, error) {
	if who.Kind != "" {
		h.top.mu.Lock()
		h.top.drainLocked() // may learn the secret, which changes fingerprints
		print = fingerprint(h.top.key.Load().hash(who))
		h.top.mu.Unlock()
	}
	client, err := parsePrint(print)
	if err != nil {
		return HourOfClient{}, who, err
	}
	all, span, err := h.ask(ctx, question{client: &client})
	if err != nil {
		return HourOfClient{}, who, err
	}
	h.merging.Lock()
	defer h.merging.Unlock()
	out := HourOfClient{Span: span, Fingerprint: fingerprint(uint64(client) << 32), Client: who.Shown(), Kind: who.Kind, Rules: []HourClientIn{}}
	if who.Kind == "" {
		name, err := nameOf(all)
		if err == ErrUnknownClient && (span.Partial != "" || len(span.NodesMissing) > 0) {
			err = ErrUnaskedClient
		}
		if err != nil {
			return out, who, err
		}
		who = Identity{name.Kind, name.value}
		out.Client, out.Kind = name.Client, name.Kind
	}
	type in struct {
		HourClientIn
		requests, kept uint64 // of all clients
		last           int64
		found          bool
	}
	rules := map[string]*in{}
	for _, t := range all {
		for _, r := range t.Rules {
			if rules[r.Rule] == nil {
				rules[r.Rule] = &in{HourClientIn: HourClientIn{Rule: r.Rule}}
			}
			in := rules[r.Rule]
			in.requests, in.kept = in.requests+r.Sum.Requests, in.kept+r.Kept
			if len(r.Rows) == 0 {
				in.LowBy += r.Lacks
			}
			for _, row := range r.Rows {
				if !in.found {
					in.found, in.History = true, newPast()
				}
				in.Requests += row.Sum.Requests
				in.Refused += row.Sum.Refused
				in.LowBy += row.LowBy
				if row.At > in.last {
					in.Used, in.last = usedShare(row.Used), row.At
				}
				span.addTo(&in.History, row.Past)
			}
		}
	}
	var requests, kept uint64
	for _, in := range rules {
		if in.found {
			out.Rules = append(out.Rules, in.HourClientIn)
			requests, kept = requests+in.requests, kept+in.kept
		}
	}
	slices.SortFunc(out.Rules, func(a, b HourClientIn) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Rule, b.Rule))
	})
	out.Coverage = coverage(kept, requests, span.sampled())
	return out, who, nil
}

// nameOf returns the one client with the fingerprint.
func nameOf(all []told) (out toldName, err error) {
	for i := range all {
		for _, n := range all[i].Names {
			switch {
			case out.ID == 0:
				out = n
			case n.ID != out.ID:
				return out, ErrAmbiguousClient
			case out.value == "":
				out = n
			}
		}
	}
	if out.ID == 0 {
		return out, ErrUnknownClient
	}
	return out, nil
}

// Resolve returns the client with a fingerprint, if it is kept whole. It asks the others only if
// this node doesn't know the client, so that an operator who wants to block a client doesn't have
// to wait.
func (h *Hour) Resolve(ctx context.Context, print string) (Identity, error) {
	client, err := parsePrint(print)
	if err != nil {
		return Identity{}, err
	}
	q := question{client: &client}
	name, err := nameOf([]told{h.top.tell(q, h.node, alone)})
	unknown := ErrLongClient
	if err == ErrUnknownClient && h.shared != nil {
		others := h.shared.askOthers(ctx, q)
		name, err = nameOf(others.all)
		unknown = ErrSealedClient
		switch {
		case others.err == ErrBusy:
			err = ErrBusy
		case err == ErrUnknownClient && (others.err != nil || len(others.missing) > 0):
			err = ErrUnaskedClient
		}
	}
	if err == nil && name.value == "" {
		err = unknown
	}
	return Identity{name.Kind, name.value}, err
}

func parsePrint(print string) (uint32, error) {
	n, err := strconv.ParseUint(print, 16, 32)
	if err != nil || len(print) != 8 {
		return 0, ErrFingerprint
	}
	return uint32(n), nil
}
