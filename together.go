package weir

import (
	"context"

	"github.com/weirhq/weir/counter"
)

// checkTogether decides several requests by the rules, and an edge's own charges, as one: all or nothing.
func (l *Limiter) checkTogether(ctx context.Context, client *Request, own []counter.Charge, requests []*Request, each []Decision) (t Decision, err error) {
	if len(requests) == 1 && len(own) == 0 { // the common case costs nothing extra
		t, err = l.Check(ctx, requests[0])
		each[0] = t
		return t, err
	}
	rs := l.rules.Load()
	ctx, all := l.begin(ctx)
	all.reset()
	clear(each)
	if rs == nil {
		t = withoutRules
		for i := range each {
			each[i] = t
		}
		l.end(client, all, &t, nil)
		return t, nil
	}
	who := *client
	who.Peek = false
	if all.watched = l.opts.Guard != nil && rs.abuse; !who.IP.IsValid() {
		all.key = who.APIKey
	}
	all.addOwn(&who, own)
	matches := make([]*match, len(requests)) // kept until the end, because the charges refer to them
	refused := (*Decision)(nil)
	bypassed := 0
	for i, req := range requests {
		m := l.scratch.Get().(*match)
		matches[i] = m
		rs.run(req, m)
		d := &each[i]
		d.RulesVersion = rs.doc.Version
		if m.reason == ReasonWithin {
			all.charges = append(all.charges, m.charges...)
			continue
		}
		m.charges, all.pattern = m.charges[:0], m.pattern
		if m.decideUncounted(d); d.Allowed {
			bypassed++
		} else if refused == nil {
			refused = d
		}
	}
	who.Peek = true
	for i := range all.charges {
		c := &all.charges[i]
		c.Peek = c.Peek || refused != nil // a refused request takes nothing
		who.Peek = who.Peek && c.Peek
	}
	all.hold(&who)
	t.RulesVersion = rs.doc.Version
	n := len(all.charges)
	err = l.decide(ctx, &who, all, &t)
	if t.Reason == ReasonCooldown {
		for i := range each {
			each[i] = t
		}
	} else {
		from := len(own)
		for i, m := range matches {
			to := from + len(m.charges)
			switch d := &each[i]; {
			case d.Reason != ReasonWithin: // no limit decided
			case from == to:
				d.Allowed, d.Reason = true, ReasonUnlimited
			default:
				l.concludePart(all, from, to, n, d)
			}
			from = to
		}
	}
	switch {
	case refused != nil:
		t.Allowed, t.Reason, t.Rule, t.RetryAfter = false, refused.Reason, refused.Rule, Never
	case n == 0 && bypassed > 0:
		t.Reason = ReasonBypassed
	}
	for _, m := range matches {
		l.scratch.Put(m)
	}
	l.end(client, all, &t, err)
	return t, err
}
