package top

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

// Query says which clients to list.
type Query struct {
	Refused bool // the clients that are refused the most, not those that send the most
	K       int
	Rule    string // what this rule bound alone; "" means whatever did
}

// Answer lists hot clients, over all nodes in Nodes.
type Answer struct {
	By            string   `json:"by"`
	WindowSeconds float64  `json:"window_seconds"` // the time over which rates are averaged
	SlotSeconds   float64  `json:"slot_seconds"`   // that a number of a history stands for
	Nodes         []Node   `json:"nodes"`
	NodesMissing  []string `json:"nodes_missing"`     // live nodes that haven't sent their lists
	Partial       string   `json:"partial,omitempty"` // why others may be missing
	// MissingBelow is the highest rate of a client that may be missing from the answer even if K is
	// large enough.
	MissingBelow float64   `json:"missing_below"`
	Clients      []Client  `json:"clients"`
	Rules        []RuleUse `json:"rules"`
	// RulesSince is when the node that has run the longest began. No node knows of earlier hits.
	RulesSince time.Time `json:"rules_since"`
}

// Node is a node whose clients are in an answer.
type Node struct {
	Name         string  `json:"name"`
	Self         bool    `json:"self"`
	AgeMS        int64   `json:"age_ms"`
	SampledOneIn float64 `json:"sampled_one_in"`
	// Since is when the node began to count.
	Since time.Time `json:"since"`
}

// Client is a client and its rates.
type Client struct {
	Client      string `json:"client"`      // masked
	Fingerprint string `json:"fingerprint"` // tells clients with the same mask apart; all nodes agree on it
	Kind        string `json:"kind"`
	Rule        string `json:"rule"`       // the rule that binds most of its requests, or of its refusals, as far as is known
	MoreRules   int    `json:"more_rules"` // how many rules bind the others
	Rates
	PlusMinus float64 `json:"plus_minus"` // error of the requests due to sampling; in 95 of 100 cases it is no larger
	LowBy     float64 `json:"low_by"`     // both rates may be too low by up to this much as well
	History   past    `json:"history"`    // the newest last
}

// RuleUse tells how a rule is used.
type RuleUse struct {
	Rule string `json:"rule"`
	Rates
	Shadow      float64    `json:"shadow_refused"` // what it would have refused, were it not in shadow
	LastHit     *time.Time `json:"last_hit"`
	LastRefusal *time.Time `json:"last_refusal"` // also one in shadow
}

// Merge combines the lists of several nodes into an answer. The first list is this node's own.
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
		covered  float64 // the part of MissingBelow that comes from lists with this client
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
