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

// maxRules is how many rules have labels of their own. Further ones share one, "other".
const maxRules = 1000

// keepRemoved is how long a rule that was removed stays, so that a scrape sees its last decisions.
const keepRemoved = 10 * time.Minute

// row is what was counted for a rule.
type row struct {
	rule    string
	stripes []stripe    // a power of two
	slots   atomic.Bool // there were some

	inForce bool      // it was, at some scrape; guarded by Metrics.mu
	removed time.Time // the first scrape at which it no longer was; likewise
}

// stripe is a core's part of a row, more or less: cores that write to one place would wait for each other.
type stripe struct {
	decisions [len(edges)][reasons]atomic.Uint64
	degraded  atomic.Uint64 // decisions
	events    [events]atomic.Uint64
	_         [64]byte // no stripe shares a cache line with the next
}

func newRow(rule string) *row {
	return &row{rule: rule, stripes: make([]stripe, observer.Stripes())}
}

func (r *row) stripe(n uint32) *stripe { return &r.stripes[int(n)&(len(r.stripes)-1)] }

// decisions is how many there were at an edge, by their reason.
func (r *row) decisions(edge int) (sum [reasons]uint64, some bool) {
	for i := range r.stripes {
		for reason := range sum {
			n := r.stripes[i].decisions[edge][reason].Load()
			sum[reason] += n
			some = some || n > 0
		}
	}
	return sum, some
}

func (r *row) events(e event) (sum uint64) {
	for i := range r.stripes {
		sum += r.stripes[i].events[e].Load()
	}
	return sum
}

// table finds rows. It is replaced, never changed.
type table struct {
	byRule map[string]*row
	// front has some of the rows, each at a place that its rule's id gives. The map is slower.
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

// row finds a rule's row, or makes one.
func (m *Metrics) row(rule string) *row {
	t := m.table.Load()
	if r := t.front[place(rule)]; r != nil && r.rule == rule {
		return r
	}
	return m.find(t, rule)
}

// find is the rest of row, apart from it since nearly every decision does without.
func (m *Metrics) find(t *table, rule string) *row {
	if r := t.byRule[rule]; r != nil {
		return r
	}
	if len(t.byRule) >= maxRules || !utf8.ValidString(rule) { // ids are valid; the names of a program's own policies may not be
		return m.other
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t = m.table.Load()
	if r := t.byRule[rule]; r != nil || len(t.byRule) >= maxRules {
		return cmp.Or(r, m.other) // others were faster
	}
	r := newRow(strings.Clone(rule))
	rows := maps.Clone(t.byRule)
	rows[r.rule] = r
	m.table.Store(newTable(rows))
	return r
}

// dropRemovedLocked forgets rules that were in force at an earlier scrape and haven't been for keepRemoved.
// Policies of no rule, such as a program's own, were never in force, and stay.
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
			m.gone.add(r)
		}
		return drop
	})
	m.table.Store(newTable(rows))
}

// Sum is what was counted over all rules. It never gets less: rules that were removed stay in it.
type Sum struct {
	// Degraded is decisions in which some limit was decided without the store, or that were made without rules.
	Degraded uint64
	// Times counts one in 64 decisions by how long they took: up to each of [TimeBounds], and last those above all.
	Times [-firstTime + 2]uint64

	decisions [len(edges)][reasons]uint64
}

// TimeBounds are those of [Sum.Times], in seconds. They aren't to be changed.
var TimeBounds = timeBounds

// Sum tells what was counted so far.
func (m *Metrics) Sum() Sum {
	m.mu.Lock()
	sum, rows := m.gone, m.table.Load().byRule
	m.mu.Unlock()
	for _, r := range rows {
		sum.add(r)
	}
	for e := range m.times {
		for i := range sum.Times {
			sum.Times[i] += m.times[e].buckets[i].Load()
		}
	}
	return sum
}

// add adds what a row has counted.
func (s *Sum) add(r *row) {
	for i := range r.stripes {
		s.Degraded += r.stripes[i].degraded.Load()
	}
	for e := range edges {
		sums, _ := r.decisions(e)
		for reason, n := range sums {
			s.decisions[e][reason] += n
		}
	}
}

// Since is what was counted since an earlier sum.
func (s Sum) Since(earlier *Sum) Sum {
	s.Degraded -= earlier.Degraded
	for i := range s.Times {
		s.Times[i] -= earlier.Times[i]
	}
	for e := range s.decisions {
		for reason := range s.decisions[e] {
			s.decisions[e][reason] -= earlier.decisions[e][reason]
		}
	}
	return s
}

// Decisions tells how many there were by edge and reason, where there were any.
func (s *Sum) Decisions(tell func(edge string, reason weir.Reason, allowed bool, n uint64)) {
	for e := range s.decisions {
		for reason, n := range s.decisions[e] {
			if n > 0 {
				tell(edges[e], weir.Reason(reason), allowed(weir.Reason(reason)), n)
			}
		}
	}
}
