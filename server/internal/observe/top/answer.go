package top

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

// Query is what to show.
type Query struct {
	Refused bool // the clients that are refused the most, not those that send the most
	K       int
	Rule    string // what this rule bound alone; "" means whatever did
}

// Answer is which clients are hot, over all nodes that are in it.
type Answer struct {
	By            string   `json:"by"`
	WindowSeconds float64  `json:"window_seconds"` // that rates are the mean of
	SlotSeconds   float64  `json:"slot_seconds"`   // that a number of a history stands for
	Nodes         []Node   `json:"nodes"`
	NodesMissing  []string `json:"nodes_missing"`     // that live, and haven't told theirs
	Partial       string   `json:"partial,omitempty"` // why others may be missing
	// MissingBelow is the highest rate that a client can have without being in the answer, were K large enough.
	MissingBelow float64   `json:"missing_below"`
	Clients      []Client  `json:"clients"`
	Rules        []RuleUse `json:"rules"`
	// RulesSince is when the oldest of the nodes began: nobody knows of hits before.
	RulesSince time.Time `json:"rules_since"`
}

// Node is one whose clients are in an answer.
type Node struct {
	Name         string  `json:"name"`
	Self         bool    `json:"self"`
	AgeMS        int64   `json:"age_ms"`
	SampledOneIn float64 `json:"sampled_one_in"`
	// Since is when it began to count.
	Since time.Time `json:"since"`
}

// Client is a client, and what it sends.
type Client struct {
	Client      string `json:"client"`      // masked
	Fingerprint string `json:"fingerprint"` // tells clients apart that look the same; it is the same on all nodes
	Kind        string `json:"kind"`
	Rule        string `json:"rule"`       // that binds the most of its requests, or of its refusals, as far as that is known
	MoreRules   int    `json:"more_rules"` // that bind others of them
	Rates
	PlusMinus float64 `json:"plus_minus"` // of requests, since they are sampled; 95 of 100 times it is no more
	LowBy     float64 `json:"low_by"`     // by so much at most both are too low besides
	History   past    `json:"history"`    // the newest last
}

// RuleUse is how a rule is used.
type RuleUse struct {
	Rule string `json:"rule"`
	Rates
	Shadow      float64    `json:"shadow_refused"` // what it would have refused, were it not in shadow
	LastHit     *time.Time `json:"last_hit"`
	LastRefusal *time.Time `json:"last_refusal"` // also one in shadow
}

// Merge makes one answer of the lists of several nodes. The first is this node's own.
func Merge(q Query, lists []List, now time.Time) Answer {
	out := Answer{
		By: "requests", WindowSeconds: (window * Slot).Seconds(), SlotSeconds: Slot.Seconds(),
		NodesMissing: []string{}, Clients: []Client{}, Rules: []RuleUse{}, RulesSince: now,
	}
	if q.Refused {
		out.By = "refused"
	}
	type sum struct {
		Client
		variance float64
		covered  float64 // of MissingBelow, by lists that it is in
		bound    float64 // by Rule
	}
	clients, rules := map[uint64]*sum{}, map[string]*RuleUse{}
	bound := map[name]float64{}
	for i, l := range lists {
		out.Nodes = append(out.Nodes, Node{l.Node, i == 0, max(0, now.Sub(l.At).Milliseconds()), l.OneIn, l.Began.UTC().Truncate(time.Second)})
		hot := &l.Clients
		if q.Rule != "" {
			hot = &l.Pairs
		}
		missing := hot.Missing.by(q.Refused)
		out.MissingBelow += missing
		if l.Began.Before(out.RulesSince) {
			out.RulesSince = l.Began
		}
		for _, c := range l.Pairs.Hot {
			if q.Rule == "" || c.Rule == q.Rule {
				bound[name{c.ID, c.Rule}] += c.Rates.by(q.Refused)
			}
		}
		for j := range hot.Hot {
			c := &hot.Hot[j]
			if q.Rule != "" && c.Rule != q.Rule {
				continue
			}
			s := clients[c.ID]
			if s == nil {
				s = &sum{Client: Client{Client: c.Client, Fingerprint: fingerprint(c.ID), Kind: c.Kind, MoreRules: -1}}
				clients[c.ID] = s
			}
			s.add(c.Rates)
			s.variance += c.Rates.Requests * (l.OneIn - 1) / out.WindowSeconds
			s.LowBy += c.Lacks
			s.covered += missing
			for k := range s.History.Requests {
				s.History.Requests[k] += c.Past.Requests[k]
				s.History.Refused[k] += c.Past.Refused[k]
			}
		}
		for _, r := range l.Rules {
			if q.Rule != "" && r.Rule != q.Rule {
				continue
			}
			u := rules[r.Rule]
			if u == nil {
				u = &RuleUse{Rule: r.Rule}
				rules[r.Rule] = u
			}
			u.add(r.Rates)
			u.Shadow += r.Shadow
			u.LastHit, u.LastRefusal = later(u.LastHit, r.LastHit), later(u.LastRefusal, r.LastRefusal)
		}
	}
	for n, rate := range bound {
		s := clients[n.client]
		if s == nil || rate <= 0 {
			continue
		}
		s.MoreRules++
		if s.MoreRules == 0 || cmp.Or(cmp.Compare(rate, s.bound), strings.Compare(s.Rule, n.rule)) > 0 {
			s.Rule, s.bound = n.rule, rate
		}
	}
	for _, s := range clients {
		s.MoreRules = max(0, s.MoreRules) // of one whose rules nobody told, too
		if s.by(q.Refused) <= 0 {
			continue
		}
		s.PlusMinus = 2 * math.Sqrt(s.variance)
		s.LowBy += out.MissingBelow - s.covered
		out.Clients = append(out.Clients, s.rounded())
	}
	slices.SortFunc(out.Clients, func(a, b Client) int {
		return cmp.Or(cmp.Compare(b.by(q.Refused), a.by(q.Refused)), cmp.Compare(a.Client, b.Client),
			cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	out.Clients = out.Clients[:min(q.K, len(out.Clients))]
	for _, u := range rules {
		u.Requests, u.Refused, u.Shadow = tenth(u.Requests), tenth(u.Refused), tenth(u.Shadow)
		out.Rules = append(out.Rules, *u)
	}
	slices.SortFunc(out.Rules, func(a, b RuleUse) int { return strings.Compare(a.Rule, b.Rule) })
	out.MissingBelow = tenth(out.MissingBelow)
	out.RulesSince = out.RulesSince.UTC().Truncate(time.Second)
	return out
}

func (s Client) rounded() Client {
	s.Requests, s.Refused, s.PlusMinus, s.LowBy = tenth(s.Requests), tenth(s.Refused), tenth(s.PlusMinus), tenth(s.LowBy)
	return s
}

func tenth(v float64) float64 { return math.Round(10*v) / 10 }

func later(a *time.Time, b time.Time) *time.Time {
	if b.IsZero() || a != nil && !a.Before(b) {
		return a
	}
	b = b.UTC().Truncate(time.Second)
	return &b
}
