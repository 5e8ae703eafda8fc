package lease

// Stats are totals since the store was made, and current numbers.
type Stats struct {
	// Asked is how many charges were sent to the inner store. Local is how many were decided without it, an estimate from one
	// request in 16.
	Asked, Local uint64
	// Evictions is how many counters were evicted to make room for others.
	Evictions uint64
	// Counters is how many counters the node knows, and Tokens how many lent tokens it holds.
	Counters, Tokens int64
}

// Charges returns Asked and Local of [Stats], without the cost of the other fields.
func (s *Store) Charges() (asked, local uint64) { return s.asked.Load(), s.here.Load() }

// Stats visits every counter that the node knows. This takes 30 ms for 400,000 counters, and doesn't block checks.
func (s *Store) Stats() Stats {
	out := Stats{Asked: s.asked.Load(), Local: s.here.Load(), Evictions: s.evicted.Load()}
	now := s.now()
	s.table.all(func(x *borrower) {
		x.mu.Lock()
		defer x.mu.Unlock()
		out.Counters++
		if now < x.leaseEnd {
			out.Tokens += x.held
		}
	})
	return out
}

// countLocal counts charges that were decided without the store. It counts only a sample, so that during a flood not every core
// writes to the same memory.
func (s *Store) countLocal(n int, now int64) {
	if n > 0 && sampled(now) {
		s.here.Add(oneIn * uint64(n))
	}
}
