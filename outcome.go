package weir

import (
	"context"
	"slices"
	"time"
)

// Outcome is how an allowed request ended, for [Limiter.Finish]. The zero value
// means that nobody knows: everything that was taken stays taken.
type Outcome struct {
	// Status is the HTTP status of the answer. Rules with Statuses give back what they
	// took unless it is one that they count. 0 means that there is none.
	Status int
	// Abandoned: the request wasn't served at all. Everything that it took goes back.
	Abandoned bool
}

// held is what a decision took and may give back.
type held struct {
	once     Once // of a receipt
	expires  time.Duration
	returns  []Return
	statuses [][]int // of returns: which answers count; none means all
}

func (h *held) add(r Return) {
	h.returns = append(h.returns, r)
	h.statuses = append(h.statuses, r.Policy.Statuses)
	h.expires = max(h.expires, r.Policy.Memory(), time.Minute)
}

// keep remembers what was taken, where it may have to go back: at once, when a limit that was decided
// apart from the others refuses the request; later, for a receipt, for rules that count by the answer's
// status, and for places in a queue.
func (l *Limiter) keep(ctx context.Context, req *Request, m *match, d *Decision) {
	undo := !d.Allowed
	if undo && m.refused() {
		return // the store took nothing
	}
	var h held
	for i := range m.results {
		r, c := &m.results[i], &m.charges[i]
		if !r.Allowed || r.Err != nil || c.Peek || slices.Contains(m.local, i) || undo && c.Policy.Book {
			continue
		}
		ret := Return{Counter: c.Counter, N: c.N, Slot: r.Slot}
		ret.Subject = slices.Clone(c.Subject)
		if r.Part == 0 {
			h.add(ret)
			continue
		}
		for i, part := range c.Policy.Parts {
			if ret.Policy, ret.N = part, c.Policy.Portion(r.Part-1, i, c.N); ret.N > 0 {
				h.add(ret)
			}
		}
	}
	switch {
	case h.returns == nil:
	case undo:
		_ = l.store.GiveBack(ctx, Once{}, 0, h.returns) // a store that fails strands them; it mints none
	default:
		d.held = &h
		if req.Receipt {
			d.Receipt = l.sealer.Load().seal(&h, l.now())
		}
	}
}

// Unfinished reports whether [Limiter.Finish] is due once the request has been
// answered: a rule counts by the answer's status.
func (d *Decision) Unfinished() bool {
	return d.held != nil && slices.ContainsFunc(d.held.statuses, func(s []int) bool { return len(s) > 0 })
}

// Finish ends an allowed request: what its outcome says it shouldn't have taken goes back, once.
// Call it for decisions that are [Decision.Unfinished], for those with a Delay that isn't waited
// for, and whenever the caller has a receipt. A receipt outlives its decision and its node:
// &Decision{Receipt: receipt} stands for both. It can be finished a single time, by any node, after
// which the error is [ErrUsed].
func (l *Limiter) Finish(ctx context.Context, d *Decision, o Outcome) error {
	h := d.held
	d.held = nil
	if d.Receipt != "" {
		var err error
		if h, err = l.sealer.Load().open(d.Receipt, l.now()); err != nil {
			return err
		}
	}
	if h == nil {
		return nil
	}
	var back []Return
	for i, ret := range h.returns {
		if !o.gives(h.statuses[i]) {
			if h.once == (Once{}) {
				continue
			}
			ret.N = 0 // stores find a Once by the counters that it comes with
		}
		back = append(back, ret)
	}
	if back == nil {
		return nil
	}
	return l.store.GiveBack(ctx, h.once, h.expires, back)
}

// gives reports whether what a rule took goes back. It counts the given statuses, or all.
func (o Outcome) gives(counted []int) bool {
	if o.Abandoned {
		return true
	}
	return o.Status != 0 && len(counted) > 0 && !slices.Contains(counted, o.Status) && !slices.Contains(counted, o.Status/100)
}
