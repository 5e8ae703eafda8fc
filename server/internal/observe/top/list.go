package top

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// listed is how many entries of each kind a node sends to others.
const listed = 250

// List is what one node sends about its clients and rules. Each client and rule is a line of its
// own: see [packer].
type List struct {
	Node    string     `json:"node"`
	At      time.Time  `json:"at"`    // by the clock that nodes share
	Began   time.Time  `json:"began"` // likewise
	OneIn   float64    `json:"one_in"`
	Clients clients    `json:"clients"`
	Pairs   clients    `json:"pairs"` // clients with the rule that bound
	Rules   []listRule `json:"-"`
}

// clients are the hottest clients of a node.
type clients struct {
	Missing Rates        `json:"missing"` // the highest rates that a client may have without being here
	Hot     []listClient `json:"-"`
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

// past is the number of requests and refusals in each slot of the last minute, the newest last.
type past struct {
	Requests [Slots]uint32 `json:"requests"`
	Refused  [Slots]uint32 `json:"refused"`
}

type listClient struct {
	ID     uint64  `json:"id"`
	Client string  `json:"client"` // masked
	Kind   string  `json:"kind"`
	Rule   string  `json:"rule"`
	Rates  Rates   `json:"rates"`
	Lacks  float64 `json:"lacks"` // how much too low the rates may be at most
	Past   past    `json:"past"`
}

type listRule struct {
	Rule        string    `json:"rule"`
	Rates       Rates     `json:"rates"`
	Shadow      float64   `json:"shadow"`
	LastHit     time.Time `json:"last_hit,omitzero"`
	LastRefusal time.Time `json:"last_refusal,omitzero"`
}

// List lists this node's hottest clients, and every rule.
func (t *Top) List(node string) List {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drainLocked()
	out := List{
		Node: node, At: t.now, Began: t.now.Add(-time.Since(t.began)), OneIn: max(1, t.oneIn),
		Clients: t.hotLocked(&t.clients), Pairs: t.hotLocked(&t.pairs),
	}
	for _, r := range t.rules.byID {
		if r.id == "" {
			continue // decisions that no rule bound
		}
		out.Rules = append(out.Rules, listRule{r.id, Rates{rate(r.requests.last(t.slot)), rate(r.refused.last(t.slot))}, rate(r.shadow.last(t.slot)), r.hit, r.refusal})
	}
	return out
}

func (t *Top) hotLocked(k *sketches) clients {
	found := map[name]listClient{}
	return clients{
		Missing: Rates{
			max(k.requests.missing(), t.hottestLocked(&k.requests, false, found)),
			max(k.refused.missing(), t.hottestLocked(&k.refused, true, found)),
		},
		Hot: slices.Collect(maps.Values(found)),
	}
}

// hottestLocked adds the hottest clients of a sketch, and returns the highest rate that it leaves
// out.
func (t *Top) hottestLocked(k *sketch, refused bool, found map[name]listClient) (left float64) {
	type hot struct {
		*entry
		rates Rates
	}
	var all []hot
	for _, e := range k.byLow {
		h := hot{e, Rates{rate(e.requests.last(t.slot)), rate(e.refused.last(t.slot))}}
		if h.rates.by(refused) > 0 {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b hot) int { return cmp.Compare(b.rates.by(refused), a.rates.by(refused)) })
	if len(all) > listed {
		left = all[listed].rates.by(refused)
		all = all[:listed]
	}
	for _, h := range all {
		n := name{h.id, h.rule}
		// A client in both sketches has been in one of them for longer: use that entry.
		if other, there := found[n]; there && other.Rates.Requests >= h.rates.Requests {
			continue
		}
		c := listClient{ID: h.id, Client: h.client.String(), Kind: h.kind.String(), Rule: h.rule, Rates: h.rates, Lacks: lacking(h.unknown)}
		c.Past.Requests, c.Past.Refused = whole(h.requests.last(t.slot)), whole(h.refused.last(t.slot))
		found[n] = c
	}
	return left
}

// lacking returns the highest rate in the window that a decayed count can stand for. Within a
// window, a count decays to no less than half.
func lacking(count float64) float64 { return 2 * count / (window * Slot).Seconds() }

func whole(all [Slots]float32) (out [Slots]uint32) {
	for i, v := range all {
		out[i] = uint32(math.Round(float64(v)))
	}
	return out
}

// Hottest returns the rate of the client with the most requests per second, over all rules.
func (t *Top) Hottest() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drainLocked()
	hottest := 0.
	for _, e := range t.clients.requests.byLow {
		hottest = max(hottest, rate(e.requests.last(t.slot)))
	}
	return hottest
}
