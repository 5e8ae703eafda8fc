package metrics

import "github.com/weirhq/weir"

// Sum is what was counted over all rules. It never gets less: rules that were removed stay in it.
type Sum struct {
	// Degraded is decisions in which some limit was decided without the store, or that were made without rules.
	Degraded uint64
	// Times counts decisions by how long they took, of one in 64: up to each of [TimeBounds] and above the one before it, and
	// last those above all.
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
