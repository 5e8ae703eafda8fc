package weir

// Each calls f with every hold whose record stands for tokens, those that end first before the others, until it returns
// false: n tokens that were debited in the given slot, which of a Concurrency limit is when they were taken, and when the
// hold ends, both µs. F must not change the holds.
func (h *Holds) Each(f func(id Once, n, slot, end int64) bool) {
	for i := h.head; i < len(h.list); i++ {
		if e := &h.list[i]; !e.dead && !e.returned && !f(e.id, e.n, e.slot, e.end) {
			return
		}
	}
}

// Counters lists those that the request would be charged to, in the order of [Decision.Limits]. Nothing is charged. It is
// empty while there are no rules.
func (l *Limiter) Counters(req *Request) []Counter {
	rs := l.rules.Load()
	if rs == nil {
		return nil
	}
	m := new(match)
	rs.run(req, m)
	counters := make([]Counter, len(m.charges))
	for i, c := range m.charges {
		counters[i] = c.Counter
	}
	return counters
}
