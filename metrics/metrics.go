// Package metrics counts decisions for Prometheus. Two lines give a program that embeds Weir what
// `weir serve` shows at /metrics:
//
//	m := metrics.New(prometheus.DefaultRegisterer)
//	limiter := weir.NewLimiter(store, rules, weir.Options{Observe: m.Observe, Holds: m})
//
// [Metrics.Watch] adds metrics of the rules and the stores.
//
// Label values are rule IDs, outcomes, reasons, edges and shards, but never a client's key, address or path. So clients can't
// create more series. docs/reference/metrics.md lists every metric.
package metrics

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/observer"
)

// Metrics counts decisions. Make one with [New]. It is safe for concurrent use.
type Metrics struct {
	table atomic.Pointer[table]
	other *row // the table's row for rules beyond maxRules
	times [len(edges)]times
	// rejected counts rejected identities by edge. Rejecting one takes so long that contention for these counters is negligible.
	rejected  [len(edges)]atomic.Uint64
	holds     holds
	uncounted uncounted

	mu      sync.Mutex // guards replacing table
	sources Sources    // guarded by mu
	gone    counts     // the totals of rows that were dropped from the table; guarded by mu
}

var _ prometheus.Collector = (*Metrics)(nil)

// New makes metrics and registers them. It panics if the registerer has Weir's metrics already. A program with several limiters
// gives each its own registerer, such as one from prometheus.WrapRegistererWith.
func New(r prometheus.Registerer) *Metrics {
	m := &Metrics{other: newRow("other"), holds: holds{seed: maphash.MakeSeed(), slots: map[slotOf]inSlot{}}}
	m.table.Store(newTable(map[string]*row{m.other.rule: m.other}))
	r.MustRegister(m)
	return m
}

// Observe counts a decision, unless it is a peek. It is for [weir.Options]. It allocates nothing. It takes a lock only for a
// rule's first decision and for decisions without the store.
func (m *Metrics) Observe(o *weir.Observation) {
	req, d := o.Request, o.Decision
	if req.Peek {
		return
	}
	edge := edgeOf(req.Edge)
	stripe := m.row(d.Rule).stripe(o.Stripe)
	stripe.counts[countOf(edge, d.Reason)].Add(1)
	if d.Degraded {
		stripe.counts[degraded].Add(1)
	}
	if req.Rejected != "" {
		m.rejected[edge].Add(1)
	}
	if o.Took > 0 {
		m.times[edge].observe(o.Took)
	}
	limits := d.Limits()
	last, lastRule, passed := nothing, "", -1
	for i := range limits {
		l := &limits[i]
		if numbers := &l.Policy.Limit; l.Allowed && d.Allowed && !l.Degraded && !l.Local && 5*l.Remaining >= numbers.Count+numbers.Burst && numbers.Fraction == 0 {
			continue // the usual case: no event
		}
		e, rule := eventOf(d, l), l.Policy.Rule
		if e == failedOpen && d.Allowed {
			passed = i
		}
		if e == nothing || e == last && rule == lastRule { // a rule with several limits counts once
			continue
		}
		m.row(rule).stripe(o.Stripe).counts[e].Add(1)
		last, lastRule = e, rule
	}
	if passed >= 0 {
		m.uncounted.add(m.holds.seed, req, &o.Charges[passed], time.Now())
	}
}

// edges are the values of the label edge. To bound their number, other names count as the first one, the library.
var edges = observer.Edges

func edgeOf(name string) int {
	if name == "" {
		return 0
	}
	for i := range edges {
		if edges[i] == name {
			return i
		}
	}
	return 0
}

const reasons = int(weir.ReasonCooldown) + 1

// allowed reports whether decisions with this reason admit the request.
func allowed(r weir.Reason) bool {
	return r == weir.ReasonWithin || r == weir.ReasonUnlimited || r == weir.ReasonBypassed
}

// Events are what operators want to know about one limit of a decision. Their values are indexes in counts.
const (
	degraded = firstEvent + iota // a decision without the store, about all limits together
	shadowRefusal
	candidateRefusal
	nearLimit
	failedOpen
	failedClosed
	countedLocally
	numCounts

	firstEvent = len(edges) * reasons
	nothing    = -1
)

func eventOf(d *weir.Decision, l *weir.LimitStatus) int {
	p := l.Policy
	switch {
	case p.Shadow && (l.Allowed || l.Degraded):
	case p.Candidate:
		return candidateRefusal
	case p.Shadow:
		return shadowRefusal
	case l.Local:
		return countedLocally
	case l.Degraded && l.Allowed:
		return failedOpen
	case l.Degraded:
		return failedClosed
	case d.Allowed && 5*l.Left() < p.Limit.Capacity():
		return nearLimit
	}
	return nothing
}
