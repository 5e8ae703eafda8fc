package top

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Span says which time and which nodes an answer covers.
type Span struct {
	SlotSeconds float64   `json:"slot_seconds"` // the length of a slot of a history
	Slots       int       `json:"slots"`
	From        time.Time `json:"from"` // when the first slot began
	At          time.Time `json:"at"`   // the time of the answer. It is in the last slot, which hasn't ended
	Asked
	first uint32 // number of the first slot
}

// Past has the numbers of requests and refusals in each slot, the newest last.
type Past struct {
	Requests []uint64 `json:"requests"`
	Refused  []uint64 `json:"refused"`
}

func newPast() Past { return Past{make([]uint64, HourSlots), make([]uint64, HourSlots)} }

// HourOfRules describes the last hour of every rule.
type HourOfRules struct {
	Span
	Bytes int        `json:"bytes"` // how much memory the answering node uses for the hour
	Rules []HourRule `json:"rules"`
}

// HourRule describes the last hour of a rule.
type HourRule struct {
	Rule string `json:"rule"`
	// Requests counts the requests that the rule applied to, whether or not it decided them. Refused counts those that
	// this rule refused.
	sum
	WouldRefuse uint64     `json:"would_refuse"` // requests that the rule refused in shadow, or as a candidate
	LastHit     *time.Time `json:"last_hit"`
	LastRefusal *time.Time `json:"last_refusal"`
	Keys        int        `json:"keys"` // number of keys that are remembered
	Above50     int        `json:"above_50"`
	Above80     int        `json:"above_80"`
	Above100    int        `json:"above_100"`
	Coverage    float64    `json:"coverage"` // the share of the requests that came from remembered keys
}

// HourOfRule describes the last hour of a rule, with its keys.
type HourOfRule struct {
	Span
	HourRule
	Series  Past         `json:"series"`
	Clients []HourClient `json:"clients"`
}

// HourClient is a key of a rule, that is, a client as the rule counts it.
type HourClient struct {
	Shown
	HourUse
}

// HourUse says how a client used a rule.
type HourUse struct {
	sum
	Used    float64 `json:"used"` // the share of the limit that is in use now, estimated from the last request
	History Past    `json:"history"`
}

// HourOfClient describes the last hour of a client, in all rules that count it.
type HourOfClient struct {
	Span
	Shown
	Rules    []HourClientIn `json:"rules"`
	Coverage float64        `json:"coverage"` // the share of these rules' requests that came from remembered keys
}

// HourClientIn describes the last hour of a client in one rule.
type HourClientIn struct {
	Rule string `json:"rule"`
	HourUse
}

// Rules describes the last hour of every rule.
func (c *Cluster) Rules(ctx context.Context) (HourOfRules, error) {
	all, span, err := c.askHour(ctx, ofRules, "")
	if err != nil {
		return HourOfRules{}, err
	}
	c.merging.Lock()
	defer c.merging.Unlock()
	out := HourOfRules{Span: span, Bytes: all[0].Bytes, Rules: []HourRule{}}
	for id, parts := range byRule(all) {
		if id != "" {
			out.Rules = append(out.Rules, mergeRule(id, parts, span.sampled()))
		}
	}
	slices.SortFunc(out.Rules, func(a, b HourRule) int { return strings.Compare(a.Rule, b.Rule) })
	return out, nil
}

// byRule groups the answers of all nodes by rule.
func byRule(all []told) map[string][]*toldRule {
	parts := map[string][]*toldRule{}
	for _, t := range all {
		for i := range t.Rules {
			r := &t.Rules[i]
			parts[r.Rule] = append(parts[r.Rule], r)
		}
	}
	return parts
}

// mergeRule merges what several nodes have answered about a rule.
func mergeRule(id string, parts []*toldRule, sampled bool) HourRule {
	out := HourRule{Rule: id}
	kept := uint64(0)
	var keys, above []sketched
	for _, p := range parts {
		out.sum.add(p.Sum)
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

// coverage returns the share of all requests that came from remembered keys. It is rounded down, so that 1 means all of
// them. If decisions were sampled, whole keys may be missing, so the result is less than 1.
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

// sampled reports whether any node has sampled decisions, instead of counting all of them.
func (s *Span) sampled() bool {
	return slices.ContainsFunc(s.Nodes, func(n Node) bool { return n.SampledOneIn > 1 })
}

// mergedKeys is the maximum number of keys of a rule in an answer.
const mergedKeys = 2000

// merged is a key of a rule, or a client in a rule. Its numbers are sums over all nodes.
type merged struct {
	toldRow
	pasts [][]byte
}

func (m *merged) add(r *toldRow) {
	m.Sum.add(r.Sum)
	if m.pasts == nil || r.At > m.At {
		m.Used, m.At = r.Used, r.At
	}
	m.Special = m.Special || r.Special
	m.pasts = append(m.pasts, r.Past)
}

// mergeRows merges rows that have the same key, and returns the keys with the most requests.
func mergeRows(parts []*toldRule) []*merged {
	byID := map[uint64]*merged{}
	for _, p := range parts {
		for i := range p.Rows {
			r := &p.Rows[i]
			m := byID[r.ID]
			if m == nil {
				m = &merged{toldRow: toldRow{named: r.named}}
				byID[r.ID] = m
			}
			m.add(r)
		}
	}
	all := slices.SortedFunc(maps.Values(byID), func(a, b *merged) int { return a.compare(b, false) })
	return all[:min(len(all), mergedKeys)]
}

func (m *merged) compare(o *merged, refused bool) int {
	if refused {
		return cmp.Or(cmp.Compare(o.Sum.Refused, m.Sum.Refused), m.compare(o, false))
	}
	return cmp.Or(cmp.Compare(o.Sum.Requests, m.Sum.Requests), cmp.Compare(m.ID, o.ID))
}

// addTo adds encoded histories to a Past.
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

// use returns how much a key used a rule.
func (s *Span) use(m *merged) HourUse {
	out := HourUse{m.Sum, math.Round(float64(m.Used)/usedAll*1000) / 1000, newPast()}
	s.addTo(&out.History, m.pasts...)
	return out
}

// Rule describes the last hour of one rule, with the keys that have the most requests or, if q says so, the most
// refusals.
func (c *Cluster) Rule(ctx context.Context, q Query) (HourOfRule, error) {
	a, err := c.Arrivals(ctx, q.Rule)
	if err != nil {
		return HourOfRule{}, err
	}
	c.merging.Lock()
	defer c.merging.Unlock()
	out := HourOfRule{Span: a.span, HourRule: a.rule, Series: newPast(), Clients: []HourClient{}}
	a.span.addTo(&out.Series, a.pasts...)
	kept := uint64(0)
	for _, m := range a.keys {
		kept += m.Sum.Requests
	}
	out.Coverage = coverage(kept, out.Requests, a.span.sampled())
	slices.SortFunc(a.keys, func(a, b *merged) int { return a.compare(b, q.Refused) })
	for _, m := range a.keys[:min(len(a.keys), q.K)] {
		out.Clients = append(out.Clients, HourClient{m.shown(), a.span.use(m)})
	}
	return out, nil
}
