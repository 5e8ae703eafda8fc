package top

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"
)

// listed is the maximum number of clients that a node sends in each list of an answer.
const listed = 250

// hotList lists the hottest clients of a node.
type hotList struct {
	Missing Rates       `json:"missing"` // the highest rates that a client that isn't listed may have
	Hot     []hotClient `json:"-"`
}

// Rates are requests and refusals per second.
type Rates struct {
	Requests float64 `json:"requests"`
	Refused  float64 `json:"refused"`
}

func (r Rates) by(refused bool) float64 {
	if refused {
		return r.Refused
	}
	return r.Requests
}

func (r *Rates) add(o Rates) {
	r.Requests += o.Requests
	r.Refused += o.Refused
}

// past has the numbers of requests and refusals in each slot of the last minute, the newest last.
type past struct {
	Requests [Slots]uint32 `json:"requests"`
	Refused  [Slots]uint32 `json:"refused"`
}

type hotClient struct {
	named
	Rule  string `json:"rule"`
	Rates Rates  `json:"rates"`
	Past  past   `json:"past"`
}

// tellHotLocked adds the hottest clients, and the use of rules, to an answer.
func (t *Top) tellHotLocked(out *told, most int) {
	out.OneIn = max(1, t.oneIn)
	out.Clients, out.Pairs = t.hotLocked(&t.clients, min(most, listed)), t.hotLocked(&t.pairs, min(most, listed))
	for _, r := range t.hour.rules {
		if r.id == "" {
			continue // skip decisions that no rule made
		}
		out.Rules = append(out.Rules, toldRule{
			Rule: r.id, Hit: r.hit, Refusal: r.refusal, Shadow: rate(r.rates.shadow.last(t.slot)),
			Rates: Rates{rate(r.rates.requests.last(t.slot)), rate(r.rates.refused.last(t.slot))},
		})
	}
	slices.SortFunc(out.Rules, func(a, b toldRule) int { return b.Hit.Compare(a.Hit) })
	out.Rules = out.Rules[:min(len(out.Rules), most)]
}

// hotLocked lists the hottest clients of two sketches. One sketch is by requests, and the other by refusals.
func (t *Top) hotLocked(by *[2]sketch, most int) (out hotList) {
	type hot struct {
		name
		*entry
		rates Rates
	}
	found := map[name]hot{}
	for i, missing := range []*float64{&out.Missing.Requests, &out.Missing.Refused} {
		refused := i == 1
		var all []hot
		for n, e := range by[i].entries {
			h := hot{n, e, Rates{rate(e.requests.last(t.slot)), rate(e.refused.last(t.slot))}}
			if h.rates.by(refused) > 0 {
				all = append(all, h)
			}
		}
		slices.SortFunc(all, func(a, b hot) int { return cmp.Compare(b.rates.by(refused), a.rates.by(refused)) })
		*missing = lacking(by[i].forgot)
		if len(all) > most {
			*missing = max(*missing, all[most].rates.by(refused))
			all = all[:most]
		}
		for _, h := range all {
			// If a client is in both sketches, use the older entry, which has the higher rate.
			if other, there := found[h.name]; !there || other.rates.Requests < h.rates.Requests {
				found[h.name] = h
			}
		}
	}
	for n, h := range found {
		out.Hot = append(out.Hot, hotClient{
			named: h.named(), Rule: n.rule, Rates: h.rates,
			Past: past{whole(h.requests.last(t.slot)), whole(h.refused.last(t.slot))},
		})
	}
	return out
}

// lacking returns the highest rate in the window that a decayed count may correspond to. Within a window, a count
// decays to no less than half.
func lacking(count float64) float64 { return 2 * count / (window * Slot).Seconds() }

func whole(all [Slots]float32) (out [Slots]uint32) {
	for i, v := range all {
		out[i] = uint32(math.Round(float64(v)))
	}
	return out
}

// Hottest returns the rate, over all rules, of the client with the most requests per second.
func (t *Top) Hottest() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drainLocked()
	hottest := 0.
	for _, e := range t.clients[0].entries {
		hottest = max(hottest, rate(e.requests.last(t.slot)))
	}
	return hottest
}

// Query says which clients to list, and in which order.
type Query struct {
	Refused bool // list the clients with the most refusals, and not those with the most requests
	K       int
	Rule    string // list only requests that this rule decided; "" means all rules
}

// Answer lists the hot clients of all nodes that it includes.
type Answer struct {
	By            string  `json:"by"`
	WindowSeconds float64 `json:"window_seconds"` // over how many seconds rates are averaged
	SlotSeconds   float64 `json:"slot_seconds"`   // the length of a slot in History
	Covered
	Partial string `json:"partial,omitempty"` // why other nodes may be missing
	// MissingBelow is the highest rate that a client may have without being in the answer, even if K is large enough.
	// The true rates of listed clients may also be higher than shown, by as much.
	MissingBelow float64   `json:"missing_below"`
	Clients      []Client  `json:"clients"`
	Rules        []RuleUse `json:"rules"`
	// RulesSince is when the node that has run the longest was started. What rules did before that is unknown.
	RulesSince time.Time `json:"rules_since"`
}

// Client is a client and its rates.
type Client struct {
	Shown
	Rule      string `json:"rule"`       // the rule that decided most of the client's requests, or of its refusals, as far as known
	MoreRules int    `json:"more_rules"` // how many rules decided the other requests
	Rates
	PlusMinus float64 `json:"plus_minus"` // sampling error of Requests: in 95 % of cases, it is no larger
	History   past    `json:"history"`    // newest last
}

// RuleUse says how much a rule is used.
type RuleUse struct {
	Rule string `json:"rule"`
	Rates
	Shadow      float64    `json:"shadow_refused"` // requests that the rule would have refused if it weren't in shadow
	LastHit     *time.Time `json:"last_hit"`
	LastRefusal *time.Time `json:"last_refusal"` // including refusals in shadow
}

// Hot lists the hot clients of all nodes that answer. It asks the other nodes at most once a second.
func (c *Cluster) Hot(ctx context.Context, q Query) Answer {
	all, asked, _ := c.ask(ctx, question{kind: hotNow}) // if the others couldn't be asked, out.Partial says so
	c.merging.Lock()
	defer c.merging.Unlock()
	out := merge(q, all)
	out.Covered, out.Partial = asked.Covered, asked.Partial
	return out
}

// merge merges the lists of several nodes into an answer.
func merge(q Query, all []told) Answer {
	out := Answer{
		By: "requests", WindowSeconds: (window * Slot).Seconds(), SlotSeconds: Slot.Seconds(),
		Clients: []Client{}, Rules: []RuleUse{}, RulesSince: all[0].Since,
	}
	if q.Refused {
		out.By = "refused"
	}
	type sum struct {
		Client
		variance float64
		bound    float64 // requests that Rule decided
	}
	clients, rules := map[uint64]*sum{}, map[string]*RuleUse{}
	bound := map[name]float64{}
	for _, t := range all {
		if t.Since.Before(out.RulesSince) {
			out.RulesSince = t.Since
		}
		for _, c := range t.Pairs.Hot {
			if q.Rule == "" || c.Rule == q.Rule {
				bound[name{c.ID, c.Rule}] += c.Rates.by(q.Refused)
			}
		}
		list := &t.Clients
		if q.Rule != "" {
			list = &t.Pairs
		}
		out.MissingBelow += list.Missing.by(q.Refused)
		for i := range list.Hot {
			c := &list.Hot[i]
			if q.Rule != "" && c.Rule != q.Rule {
				continue
			}
			s := clients[c.ID]
			if s == nil {
				s = &sum{Client: Client{Shown: c.shown(), MoreRules: -1}}
				clients[c.ID] = s
			}
			s.add(c.Rates)
			s.variance += c.Rates.Requests * (t.OneIn - 1) / out.WindowSeconds
			for k := range s.History.Requests {
				s.History.Requests[k] += c.Past.Requests[k]
				s.History.Refused[k] += c.Past.Refused[k]
			}
		}
		for _, r := range t.Rules {
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
			u.LastHit, u.LastRefusal = later(u.LastHit, r.Hit), later(u.LastRefusal, r.Refusal)
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
		if s.by(q.Refused) <= 0 {
			continue
		}
		s.MoreRules = max(0, s.MoreRules) // nodes may have sent no rules
		s.Requests, s.Refused, s.PlusMinus = tenth(s.Requests), tenth(s.Refused), tenth(2*math.Sqrt(s.variance))
		out.Clients = append(out.Clients, s.Client)
	}
	slices.SortFunc(out.Clients, func(a, b Client) int {
		return cmp.Or(cmp.Compare(b.by(q.Refused), a.by(q.Refused)), strings.Compare(a.Client, b.Client),
			strings.Compare(a.Fingerprint, b.Fingerprint))
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

func tenth(v float64) float64 { return math.Round(10*v) / 10 }

func later(a *time.Time, b time.Time) *time.Time {
	if b.IsZero() || a != nil && !a.Before(b) {
		return a
	}
	b = b.UTC().Truncate(time.Second)
	return &b
}
