package top

import (
	"cmp"
	"context"
	"slices"
	"sort"
	"time"

	"github.com/weirhq/weir/counter"
)

// Arrivals are the requests of the last hour that a rule applied to, from keys of the rule that are remembered.
type Arrivals struct {
	span  Span
	rule  HourRule
	keys  []*merged
	pasts [][]byte // the rule's history, as each node sent it
}

// WhatIf says what another limit would have done with the arrivals of a rule.
type WhatIf struct {
	Rule      string `json:"rule"`
	Limit     string `json:"limit"`
	Capacity  int64  `json:"capacity,omitempty"`
	Algorithm string `json:"algorithm"`
	Hour      struct {
		From time.Time `json:"from"`
		To   time.Time `json:"to"`
	} `json:"hour"`
	Requests    uint64         `json:"requests"`          // requests by remembered keys
	WouldRefuse uint64         `json:"would_refuse"`      // refusals if the requests were spread evenly over each slot
	AtMost      uint64         `json:"would_refuse_most"` // refusals if the requests came in bursts
	WasRefused  uint64         `json:"was_refused"`
	Elsewhere   uint64         `json:"refused_elsewhere"` // requests that other rules refused, so they took no tokens
	Keys        int            `json:"keys"`
	KeysRefused int            `json:"keys_refused"`
	KeysSpecial int            `json:"keys_special"` // keys with overrides, which stay in force
	Clients     []WhatIfClient `json:"clients"`
	Coverage    float64        `json:"coverage"` // the share of the rule's requests that came from remembered keys
	LeftOut     uint64         `json:"left_out"` // requests that the rule applied to, from keys that aren't remembered
	Asked
	Resolution float64 `json:"resolution_seconds"` // the length of the slots over which requests are spread evenly
}

// WhatIfClient says what another limit would have done with the requests of one key.
type WhatIfClient struct {
	Shown
	Requests    uint64 `json:"requests"`
	WouldRefuse uint64 `json:"would_refuse"`
	AtMost      uint64 `json:"would_refuse_most"`
	WasRefused  uint64 `json:"was_refused"`
}

const (
	// worst is how many keys are listed, starting with those that have the most refusals.
	worst = 100
	// mostSteps limits a replay to about a second of CPU time. If there are more requests, successive requests are
	// replayed in groups.
	mostSteps = 5_000_000
)

// Arrivals collects the requests of a rule's keys from all nodes that answer.
func (c *Cluster) Arrivals(ctx context.Context, rule string) (*Arrivals, error) {
	all, span, err := c.askHour(ctx, ofRule, rule)
	if err != nil {
		return nil, err
	}
	c.merging.Lock()
	defer c.merging.Unlock()
	parts := byRule(all)[rule]
	out := &Arrivals{span: span, rule: mergeRule(rule, parts, span.sampled()), keys: mergeRows(parts)}
	for _, p := range parts {
		out.pasts = append(out.pasts, p.Past)
	}
	return out, nil
}

// Under replays the arrivals under another limit, with a new counter for each key. If ctx is done, it stops early.
func (a *Arrivals) Under(ctx context.Context, p *counter.Policy) WhatIf {
	out := WhatIf{
		Rule: a.rule.Rule, Limit: p.Limit.String(), Capacity: p.Limit.Burst, Algorithm: p.Limit.Algorithm.String(), Clients: []WhatIfClient{},
		Asked: a.span.Asked, Resolution: a.span.SlotSeconds,
	}
	out.Hour.From, out.Hour.To = a.span.From, a.span.At
	slots, all := 1, make([][]tick, len(a.keys))
	for i, k := range a.keys {
		all[i] = k.ticks(a.span.first)
		slots += len(all[i])
	}
	for i, k := range a.keys {
		if ctx.Err() != nil {
			break
		}
		c := WhatIfClient{Shown: k.shown()}
		for _, t := range all[i] {
			c.Requests += t.requests
			c.WasRefused += t.refused
			out.Elsewhere += t.elsewhere
		}
		if c.WouldRefuse, c.AtMost = c.WasRefused, c.WasRefused; k.Special {
			out.KeysSpecial++
		} else {
			c.WouldRefuse = replay(p, all[i], max(10, mostSteps/uint64(slots)))
			c.AtMost = max(c.WouldRefuse, replay(p, all[i], 0))
		}
		out.Keys++
		out.Requests += c.Requests
		out.WouldRefuse += c.WouldRefuse
		out.AtMost += c.AtMost
		out.WasRefused += c.WasRefused
		if c.WouldRefuse > 0 {
			out.KeysRefused++
		}
		if c.AtMost > 0 || c.WasRefused > 0 {
			out.Clients = append(out.Clients, c)
		}
	}
	slices.SortFunc(out.Clients, func(a, b WhatIfClient) int {
		return cmp.Or(cmp.Compare(b.WouldRefuse, a.WouldRefuse), cmp.Compare(b.WasRefused, a.WasRefused), cmp.Compare(b.Requests, a.Requests),
			cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	out.Clients = out.Clients[:min(worst, len(out.Clients))]
	out.LeftOut = a.rule.Requests - min(out.Requests, a.rule.Requests)
	out.Coverage = coverage(out.Requests, a.rule.Requests, a.span.sampled())
	return out
}

// ticks returns the slots of a key in order of time. It merges the slots of all nodes.
func (m *merged) ticks(first uint32) (out []tick) {
	for _, b := range m.pasts {
		readPast(b, func(t tick) {
			if t.slot >= first {
				out = append(out, t)
			}
		})
	}
	slices.SortStableFunc(out, func(a, b tick) int { return cmp.Compare(a.slot, b.slot) })
	n := 0
	for _, t := range out {
		if n > 0 && out[n-1].slot == t.slot {
			last := &out[n-1]
			last.requests, last.refused = min(mostCount, last.requests+t.requests), min(mostCount, last.refused+t.refused)
			last.elsewhere, last.tokens = min(mostCount, last.elsewhere+t.elsewhere), min(mostCount, last.tokens+t.tokens)
			continue
		}
		out[n] = t
		n++
	}
	return out[:n]
}

// replay sends the requests to a counter, and returns how many of them the counter refuses. If most isn't 0, the
// requests of a slot arrive one by one, evenly spread over the slot; if there are more than most of them, they arrive
// in most groups. If most is 0, all requests of a slot arrive at the same time: at the end of a slot that follows a
// pause, and at the beginning of any other slot. That leaves the least time to refill between bursts. As in reality,
// requests that another rule refused take no tokens.
func replay(p *counter.Policy, ticks []tick, most uint64) (refused uint64) {
	c, length := trial{policy: p}, HourSlot.Microseconds()
	for i, t := range ticks {
		asked, begin := t.asked(), int64(t.slot)*length
		steps := min(asked, max(1, most))
		for step := range steps {
			// The share of a step is the total up to this step minus the total up to the previous step, so that
			// rounding loses no requests and no tokens.
			n := asked*(step+1)/steps - asked*step/steps
			tokens := t.tokens*(step+1)/steps - t.tokens*step/steps
			now := begin
			if most > 0 {
				now += int64(2*step+1) * length / int64(2*steps)
			} else if i == 0 || ticks[i-1].slot+1 < t.slot {
				now += length - 1
			}
			refused += n - c.take(now, n, max(1, (tokens+n/2)/n))
		}
	}
	return refused
}

// trial is a counter of any algorithm. The time is an argument of its methods.
type trial struct {
	policy *counter.Policy
	state  counter.State
	log    counter.Log
}

// take admits as many of n requests as fit now, at cost tokens each. It returns how many it admitted.
func (c *trial) take(now int64, n, cost uint64) (taken uint64) {
	if taken = n; !c.fits(now, n*cost) {
		taken = uint64(sort.Search(int(n-1), func(i int) bool { return !c.fits(now, uint64(i+1)*cost) }))
	}
	if taken > 0 {
		c.debit(now, taken*cost)
	}
	if c.policy.CountRefused && taken < n {
		c.debit(now, (n-taken)*cost)
	}
	return taken
}

// bounded caps a cost at what counters accept, which is more than any limit admits.
func bounded(tokens uint64) int64 { return int64(min(tokens, 2*counter.MaxTokens)) }

func (c *trial) fits(now int64, tokens uint64) bool {
	switch {
	case c.policy.Book:
		return true
	case c.policy.Limit.Algorithm == counter.SlidingLog:
		return c.policy.FitsLog(&c.log, now, bounded(tokens))
	}
	_, ok := c.policy.Try(c.state, now, bounded(tokens))
	return ok
}

func (c *trial) debit(now int64, tokens uint64) {
	if c.policy.Limit.Algorithm == counter.SlidingLog {
		c.policy.TryLog(&c.log, now, bounded(tokens))
		return
	}
	c.state, _ = c.policy.Debit(c.state, now, bounded(tokens))
}
