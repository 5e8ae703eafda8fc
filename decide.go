package weir

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weirhq/weir/counter"
)

// decide makes a decision about the charges in m.
func (l *Limiter) decide(ctx context.Context, req *Request, m *match, d *Decision) error {
	if len(m.charges) == 0 {
		d.Allowed, d.Reason = true, ReasonUnlimited
		return nil
	}
	if m.watched {
		if i, wait := l.cooldown(m); wait > 0 {
			l.keepOut(ctx, m, d, i, wait)
			return nil
		}
	}
	m.results = slices.Grow(m.results[:0], len(m.charges))[:len(m.charges)]
	l.store.Take(ctx, m.charges, m.results)
	var err error
	for i := range m.results {
		if m.results[i].Err != nil {
			err = l.fallBack(ctx, req, m)
			break
		}
	}
	byStatus := l.conclude(m, d)
	undo := !d.Allowed && len(m.apart) > 0 // takeApart refused a charge, so return what the store took
	if !req.Peek && (req.Receipt || byStatus || d.Delay > 0 || err != nil || undo || m.holds || req.Reserve > 0) {
		l.keep(ctx, req, m, d)
	}
	if m.watched {
		l.tellGuard(m, d)
	}
	return err
}

// cooldown returns the charge whose client is kept out the longest. If there is none, longest is 0.
func (l *Limiter) cooldown(m *match) (i int, longest time.Duration) {
	for j := range m.charges {
		if c := &m.charges[j]; c.Policy.Abuse != nil && !m.guarded(j) {
			if wait := l.opts.Guard.Cooldown(c); wait > longest {
				i, longest = j, wait
			}
		}
	}
	return i, longest
}

// guarded reports whether charge i has the same client and rule as the charge before it, so that the guard sees them as one.
func (m *match) guarded(i int) bool {
	if i == 0 {
		return false
	}
	a, b := &m.charges[i-1], &m.charges[i]
	return a.Policy.Abuse != nil && a.Policy.Rule == b.Policy.Rule && bytes.Equal(a.Subject, b.Subject)
}

// keepOut refuses a request because the client of charge i is in a cooldown. Only charges of Book policies, which are always
// taken, go to the store.
func (l *Limiter) keepOut(ctx context.Context, m *match, d *Decision, i int, wait time.Duration) {
	out := m.charges[i]
	m.charges = slices.DeleteFunc(m.charges, func(c counter.Charge) bool { return !c.Policy.Book })
	m.results = slices.Grow(m.results[:0], len(m.charges)+1)[:len(m.charges)]
	if len(m.charges) > 0 {
		l.store.Take(ctx, m.charges, m.results)
	}
	m.charges, m.results = append(m.charges, out), append(m.results, counter.Result{RetryAfter: wait, ResetAfter: wait})
	l.conclude(m, d)
	d.Reason = ReasonCooldown
	l.tellGuard(m, d)
}

// tellGuard reports to the guard, for each client charged, that the request was allowed or how long the client must wait.
func (l *Limiter) tellGuard(m *match, d *Decision) {
	for i := 0; i < len(m.results); {
		c, told, wait := &m.charges[i], false, time.Duration(0)
		for first := true; i < len(m.results) && (first || m.guarded(i)); i++ {
			r := &m.results[i]
			first = false
			if c.Policy.Abuse == nil || c.Peek || r.Err != nil || r.Allowed != d.Allowed {
				continue
			}
			told = true
			if !r.Allowed && wait >= 0 && (r.RetryAfter < 0 || r.RetryAfter > wait) {
				c, wait = &m.charges[i], r.RetryAfter
			}
		}
		d.Drop = told && l.opts.Guard.Decided(c, wait) || d.Drop
	}
}

// fallBack decides the charges that the store couldn't decide, by the failure modes of their policies. Charges that are counted
// locally, including the emergency limit, are decided together, all or nothing. If the request is refused anyway, they take
// nothing.
func (l *Limiter) fallBack(ctx context.Context, req *Request, m *match) error {
	var err error
	refused := m.refused()
	for i := range m.results {
		r, c := &m.results[i], &m.charges[i]
		if r.Err == nil || l.chargeAddress(ctx, req, m, i, refused) {
			refused = refused || !r.Allowed && !c.Policy.Shadow
			continue
		}
		err = errors.Join(err, r.Err)
		switch {
		case errors.Is(r.Err, counter.ErrPartition):
			refused = refused || !c.Policy.Shadow
		case l.opts.Local != nil && (c.Policy.OnStoreFailure == FailLocal || c.Policy.OnStoreFailure == FailAllow && r.Local):
			m.local = append(m.local, i)
		case c.Policy.OnStoreFailure == FailRefuse:
			refused = refused || !c.Policy.Shadow
		default:
			r.Allowed = true
		}
	}
	if err != nil && l.opts.Emergency != nil {
		m.addByIP(l.opts.Emergency, req, l.networks)
		m.results = append(m.results, counter.Result{})
		m.local = append(m.local, len(m.charges)-1)
	}
	if len(m.local) == 0 {
		return err
	}
	charges, results := make([]counter.Charge, len(m.local)), make([]counter.Result, len(m.local))
	for j, i := range m.local {
		charges[j] = m.charges[i]
	}
	takeApart(ctx, l.opts.Local, charges, results, refused)
	for j, i := range m.local {
		known := m.results[i].Local
		if m.results[i] = results[j]; results[j].Err != nil { // there was no room for the counter
			m.results[i].Allowed = known && charges[j].Policy.OnStoreFailure == FailAllow
		}
	}
	m.apart = append(m.apart, m.local...)
	return err
}

// chargeAddress handles a charge for which the store has no room. If the client may have invented the subject, it charges the
// client's IP address instead. It reports whether the store decided.
func (l *Limiter) chargeAddress(ctx context.Context, req *Request, m *match, i int, refused bool) bool {
	if !m.charges[i].Guest || !req.IP.IsValid() || !errors.Is(m.results[i].Err, counter.ErrNoRoom) {
		return false
	}
	from := len(m.subjects)
	m.subjects = append(m.subjects, 0xff) // no other subject of the rule begins with this byte
	m.appendIP(req, l.networks, true)
	c := []counter.Charge{m.charges[i]}
	c[0].Subject, c[0].Guest = m.subjects[from:], false
	m.apart = append(m.apart, i)
	takeApart(ctx, l.store, c, m.results[i:i+1], refused)
	m.charges[i].Counter, m.charges[i].Peek = c[0].Counter, c[0].Peek
	return m.results[i].Err == nil
}

// takeApart decides charges separately from the others of their request. If the request is refused already, they become peeks,
// except for charges of Book policies, and for refused charges to windows that count refusals.
func takeApart(ctx context.Context, s counter.Store, charges []counter.Charge, results []counter.Result, refused bool) {
	var counts []int
	for i := range charges {
		if c := &charges[i]; refused && !c.Peek && !c.Policy.Book {
			if c.Peek = true; c.Policy.CountRefused {
				counts = append(counts, i)
			}
		}
	}
	s.Take(ctx, charges, results)
	for _, i := range counts {
		if r := &results[i]; !r.Allowed && r.Err == nil {
			charges[i].Peek = false
			s.Take(ctx, charges[i:i+1], results[i:i+1])
		}
	}
}

// addByIP adds a charge that is counted by the request's IP address, or by m.key if that is set.
func (m *match) addByIP(p *counter.Policy, req *Request, by networks) {
	from := len(m.subjects)
	m.appendIP(req, by, true)
	if m.key != "" {
		m.subjects = append(append(m.subjects, 0xff), m.key...) // no address begins with this byte
	}
	m.charges = append(m.charges, counter.Charge{
		Counter: counter.Counter{Policy: p, Subject: m.subjects[from:]},
		N:       min(max(req.Cost, 1), p.MaxCharge()), Peek: req.Peek, Returnable: req.Receipt,
	})
}

// refused reports whether the store refused the request, and so took nothing.
func (m *match) refused() bool {
	for i := range m.results {
		if r := &m.results[i]; !r.Allowed && r.Err == nil && !m.charges[i].Policy.Shadow && !slices.Contains(m.apart, i) {
			return true
		}
	}
	return false
}

// conclude makes a decision from the results. The most restrictive result determines it. It reports whether a limit depends on
// the response's status.
func (l *Limiter) conclude(m *match, d *Decision) (byStatus bool) {
	return l.concludePart(m, 0, len(m.results), len(m.results), d)
}

// concludePart is like conclude, but looks only at the charges in [from, to) and from last on.
func (l *Limiter) concludePart(m *match, from, to, last int, d *Decision) (byStatus bool) {
	n := to - from + len(m.results) - last
	d.n = uint8(n)
	statuses := d.few[:min(n, len(d.few))]
	if n > len(d.few) {
		d.many = make([]LimitStatus, n)
		statuses = d.many
	}
	d.Allowed = true
	binding, bound := (*LimitStatus)(nil), 0
	for j := range statuses {
		i := from + j
		if i >= to {
			i += last - to
		}
		r, p, s := &m.results[i], m.charges[i].Policy, &statuses[j]
		if r.Err != nil {
			r.ResetAfter = p.LatestReset(l.opts.Now())
		}
		s.set(p, r)
		byStatus = byStatus || len(p.Statuses) > 0
		if len(m.apart) > 0 {
			s.Local = s.Local || slices.Contains(m.local, i)
			d.Degraded = d.Degraded || slices.Contains(m.apart, i)
		}
		if p.Shadow {
			continue
		}
		if s.Degraded || s.Local {
			d.Degraded = true
		}
		if !s.Allowed {
			d.Allowed, d.Reason = false, ReasonLimited
		}
		d.Delay = max(d.Delay, r.Delay)
		if binding == nil || m.binds(i, bound) {
			binding, bound = s, i
		}
	}
	if !d.Allowed {
		d.Delay = 0
	}
	if s := binding; s != nil {
		if d.bind(s); s.Degraded && !s.Allowed {
			d.Reason = ReasonUnavailable
		}
	}
	return byStatus
}

// binds reports whether charge i, rather than charge j, determines the decision. Refusals come before allowed charges, and
// charges that were counted before those that couldn't be. After that, the longest wait or the fewest requests left decide.
func (m *match) binds(i, j int) bool {
	a, b := &m.results[i], &m.results[j]
	if a.Allowed != b.Allowed {
		return !a.Allowed
	}
	if (a.Err != nil) != (b.Err != nil) {
		return a.Err == nil
	}
	if !a.Allowed {
		return b.RetryAfter != Never && (a.RetryAfter == Never || a.RetryAfter > b.RetryAfter)
	}
	return a.Remaining/max(1, m.charges[i].N) < b.Remaining/max(1, m.charges[j].N)
}
