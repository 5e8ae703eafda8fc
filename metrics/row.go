package metrics

import (
	"cmp"
	"maps"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/observer"
)

// maxRules is how many rules get a label value of their own. Other rules share the value "other".
const maxRules = 1000

// keepRemoved is how long a removed rule stays in the metrics, so that a scrape can see its last decisions.
const keepRemoved = 10 * time.Minute

type row struct {
	rule    string
	stripes []stripe    // their number is a power of two
	slots   atomic.Bool // the rule has had slots in use

	inForce bool      // the rule was in force at some scrape; guarded by Metrics.mu
	removed time.Time // the first scrape after the rule was removed; guarded by Metrics.mu
}

// stripe has a part of a row's counts. Cores use different stripes, mostly, so that they don't wait for each other's writes.
type stripe struct {
	counts [numCounts]atomic.Uint64
	_      [64]byte // keeps stripes in different cache lines
}

// counts are those of a rule: decisions by edge and reason, see countOf, and then events.
type counts [numCounts]uint64

// countOf returns the index in counts of the decisions at an edge for a reason.
func countOf(edge int, r weir.Reason) int { return edge*reasons + int(r) }

func (c *counts) add(o *counts) {
	for i, n := range o {
		c[i] += n
	}
}

// decisions calls tell for every edge and reason that have decisions.
func (c *counts) decisions(tell func(edge string, r weir.Reason, n uint64)) {
	for i, n := range c[:firstEvent] {
		if n > 0 {
			tell(edges[i/reasons], weir.Reason(i%reasons), n)
		}
	}
}

func newRow(rule string) *row {
	return &row{rule: rule, stripes: make([]stripe, observer.Stripes())}
}

func (r *row) stripe(n uint32) *stripe { return &r.stripes[int(n)&(len(r.stripes)-1)] }

func (r *row) sum() (sum counts) {
	for i := range r.stripes {
		for j := range sum {
			sum[j] += r.stripes[i].counts[j].Load()
		}
	}
	return sum
}

// table finds rows. It is immutable; a new rule replaces it.
type table struct {
	byRule map[string]*row
	// front has some of the rows, each at the place of its rule's ID, because the map is slower.
	front [64]*row
}

func newTable(byRule map[string]*row) *table {
	t := &table{byRule: byRule}
	for rule, r := range byRule {
		t.front[place(rule)] = r
	}
	return t
}

func place(rule string) int {
	if rule == "" {
		return 0
	}
	return (len(rule) + 3*int(rule[len(rule)-1])) & 63
}

// row returns a rule's row. If there is none, it adds one.
func (m *Metrics) row(rule string) *row {
	t := m.table.Load()
	if r := t.front[place(rule)]; r != nil && r.rule == rule {
		return r
	}
	return m.find(t, rule)
}

// find is the slow path of row, which few decisions take.
func (m *Metrics) find(t *table, rule string) *row {
	if r := t.byRule[rule]; r != nil {
		return r
	}
	if len(t.byRule) >= maxRules || !utf8.ValidString(rule) { // a policy outside of rules may have such a name
		return m.other
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t = m.table.Load()
	if r := t.byRule[rule]; r != nil || len(t.byRule) >= maxRules {
		return cmp.Or(r, m.other) // another goroutine has added the row, or filled the table
	}
	r := newRow(strings.Clone(rule))
	rows := maps.Clone(t.byRule)
	rows[r.rule] = r
	m.table.Store(newTable(rows))
	return r
}

// dropRemovedLocked drops rules that were in force at an earlier scrape and were removed at least keepRemoved ago. Policies
// without a rule, such as a program's own, were never in force, and stay.
func (m *Metrics) dropRemovedLocked(now time.Time) {
	if m.sources.Limiter == nil {
		return
	}
	inForce := map[string]bool{}
	for _, r := range m.sources.Limiter.Rules().Rules().Rules {
		inForce[r.ID] = true
	}
	rows := maps.Clone(m.table.Load().byRule)
	maps.DeleteFunc(rows, func(rule string, r *row) bool {
		switch {
		case inForce[rule]:
			r.inForce, r.removed = true, time.Time{}
		case r.inForce && r.removed.IsZero():
			r.removed = now
		}
		drop := r != m.other && !r.removed.IsZero() && now.Sub(r.removed) >= keepRemoved
		if drop {
			sum := r.sum()
			m.gone.add(&sum)
		}
		return drop
	})
	m.table.Store(newTable(rows))
}

// Sum is a total over all rules. It never decreases: it includes removed rules.
type Sum struct {
	// Degraded counts decisions in which some limit was decided without the store, or that were made without rules.
	Degraded uint64
	// Times is a histogram of how long decisions took, for one decision in 64. Times[i] counts decisions that took up to
	// TimeBounds[i] and longer than the previous bound. The last element counts decisions above all bounds.
	Times [-firstTime + 2]uint64

	counts counts
}

// TimeBounds are the upper bounds of [Sum.Times], in seconds. Don't change them.
var TimeBounds = timeBounds

// Sum returns the totals so far.
func (m *Metrics) Sum() Sum {
	m.mu.Lock()
	sum, rows := Sum{counts: m.gone}, m.table.Load().byRule
	m.mu.Unlock()
	for _, r := range rows {
		c := r.sum()
		sum.counts.add(&c)
	}
	sum.Degraded = sum.counts[degraded]
	for e := range m.times {
		for i := range sum.Times {
			sum.Times[i] += m.times[e].buckets[i].Load()
		}
	}
	return sum
}

// Since returns what was counted since an earlier sum.
func (s Sum) Since(earlier *Sum) Sum {
	s.Degraded -= earlier.Degraded
	for i := range s.Times {
		s.Times[i] -= earlier.Times[i]
	}
	for i := range s.counts {
		s.counts[i] -= earlier.counts[i]
	}
	return s
}

// Decisions calls tell for every edge and reason that have decisions.
func (s *Sum) Decisions(tell func(edge string, reason weir.Reason, allowed bool, n uint64)) {
	s.counts.decisions(func(edge string, r weir.Reason, n uint64) { tell(edge, r, allowed(r), n) })
}
