package envoy

import (
	"context"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/server/internal/edge/recent"
)

// call is what deciding one request needs, reused from request to request.
type call struct {
	req      weir.Request
	hits     []hit // of each descriptor
	charges  []counter.Charge
	subjects []byte
	returns  []counter.Return

	answer answer
	judge  func(*weir.Decision) // c.together, bound once
	spent  bool                 // the limiter has allowed what all quotas together refuse
}

// hit is a descriptor of a request with the limit that it meets.
type hit struct {
	limit    *limit // nil: none
	n        int64  // hits; 0 peeks
	back     bool   // the hits are given back
	replaced bool   // another limit of the request takes its place
	at       int    // 1 + the index of its charge, or return; 0: it has none
	from, to int    // where its subject lies
}

// forget lets go of the client's values, which would otherwise live as long as the pool.
func (c *call) forget() {
	clear(c.hits)
	clear(c.charges)
	clear(c.returns)
	c.req, c.hits, c.charges, c.subjects, c.returns = weir.Request{}, c.hits[:0], c.charges[:0], c.subjects[:0], c.returns[:0]
	if cap(c.subjects) > 2*MaxText { // of a client's long values
		c.subjects = nil
	}
	c.answer, c.spent = answer{}, false
}

// byConfig decides a request by the configuration.
func (s *Service) byConfig(ctx context.Context, c *call, k *link, req *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	if err := c.match(k.config, req, &s.overrides); err != nil {
		return nil, err
	}
	k.replace(c.hits)
	quotas := c.replace(s.opts.Modes)
	c.charge(req, quotas > 1)
	c.answer = newAnswer(&s.opts, req)
	if quotas > 1 {
		c.req.Judge = c.judge
	}
	d, err := s.limiter.Take(ctx, &c.req, c.charges)
	s.failed(err)
	if len(c.returns) > 0 {
		s.failed(s.limiter.GiveBack(ctx, c.returns))
	}
	if quotas <= 1 {
		c.answer.decided(c, &d)
	}
	if c.spent {
		s.failed(s.limiter.GiveBack(ctx, c.taken(&d))) // what the other limits had
	}
	return c.answer.response(), nil
}

// together decides a request with several quotas. The limiter refuses nothing by them, so what all of them refuse together
// becomes a refusal here, before observers are told: by the quota that is spent for the longest.
func (c *call) together(d *weir.Decision) {
	if refused := c.answer.decided(c, d); !refused || !d.Allowed {
		return
	}
	c.spent = true
	d.Allowed, d.Reason, d.RetryAfter = false, weir.ReasonLimited, 0
	limits := d.Limits()
	for i := range c.hits {
		h := &c.hits[i]
		if h.at == 0 || h.back || !h.limit.quota || h.limit.shadow {
			continue
		}
		if l := &limits[h.at-1]; l.RetryAfter >= d.RetryAfter {
			d.Rule, d.Policy, d.Remaining, d.RetryAfter, d.ResetAfter = l.Policy.Rule, l.Policy, 0, l.RetryAfter, l.ResetAfter
		}
	}
}

// match finds the limit that each descriptor meets.
func (c *call) match(config *Config, req *rls.RateLimitRequest, more *overrides) error {
	top, known := config.domains[req.Domain]
	known = known || config.anyDomain
	for _, d := range req.Descriptors {
		h := hit{n: hits(req, d), back: d.GetIsNegativeHits()}
		switch {
		case !known:
		case d.GetLimit() != nil:
			var err error
			if h.limit, err = more.get(d.GetLimit()); err != nil {
				return err
			}
		default:
			h.limit = top.limit(d.GetEntries())
		}
		c.hits = append(c.hits, h)
	}
	return nil
}

// limit is that of the descriptor whose keys and values are these.
func (l level) limit(entries []*ratelimit.RateLimitDescriptor_Entry) *limit {
	var d *descriptor
	for _, e := range entries {
		if d = l.find(e.GetKey(), e.GetValue()); d == nil {
			return nil
		}
		l = d.below
	}
	if d == nil {
		return nil
	}
	return d.limit
}

// replace drops limits that others of the request replace, and returns how many descriptors are in quota_mode. Where all
// are, one without a limit is a quota that has room.
func (c *call) replace(global Modes) (quotas int) {
	for i := range c.hits {
		if c.hits[i].limit == nil {
			continue
		}
		for _, name := range c.hits[i].limit.replaces {
			for j := range c.hits {
				l := c.hits[j].limit
				c.hits[j].replaced = c.hits[j].replaced || l != nil && !l.unlimited() && l.wire.Name == name
			}
		}
	}
	for i := range c.hits {
		if c.hits[i].replaced {
			c.hits[i].limit = nil
		}
		if l := c.hits[i].limit; l == nil && global.Quota || l != nil && l.quota {
			quotas++
		}
	}
	return quotas
}

// charge makes charges of the hits, and returns of those that are given back. Together says that the request has
// several quotas.
func (c *call) charge(req *rls.RateLimitRequest, together bool) {
	c.req.Edge, c.req.Cost = edge, 1
	for i := range c.hits {
		h, d := &c.hits[i], req.Descriptors[i]
		c.identify(d)
		l := h.limit
		if l == nil || l.unlimited() {
			continue
		}
		p := l.hard
		if together && l.quota {
			p = l.soft
		}
		h.from = len(c.subjects)
		c.appendSubject(req.Domain, d, l)
		h.to = len(c.subjects)
		if h.back {
			c.returns = append(c.returns, counter.Return{Counter: counter.Counter{Policy: p}, N: h.n})
			h.at = len(c.returns)
			continue
		}
		n := h.n
		if n == 0 && !p.CountRefused { // which alone ever is past its limit; others say whether one more would fit
			n = 1
		}
		if n > 0 && l.closed() { // its policy has one token, which nobody gets
			n++
		}
		c.charges = append(c.charges, counter.Charge{Counter: counter.Counter{Policy: p}, N: n, Peek: h.n == 0})
		h.at = len(c.charges)
	}
	c.req.Peek = !slices.ContainsFunc(c.charges, func(ch counter.Charge) bool { return !ch.Peek }) && len(c.charges) > 0
	for i := range c.hits { // now that the subjects lie where they stay
		h := &c.hits[i]
		subject := c.subjects[h.from:h.to:h.to]
		switch {
		case h.at == 0:
		case h.back:
			c.returns[h.at-1].Subject = subject
		default:
			c.charges[h.at-1].Subject = subject
		}
	}
}

// identify notes who asks, for the limit by address that holds while the store can't be reached, and for those
// who look at what is busy.
func (c *call) identify(d *ratelimit.RateLimitDescriptor) {
	for _, e := range d.GetEntries() {
		switch e.GetKey() {
		case "remote_address", "masked_remote_address":
			if ip, err := netip.ParseAddr(e.GetValue()); err == nil {
				c.req.IP = ip
			}
		case "api_key":
			c.req.APIKey = e.GetValue()
		case "user":
			c.req.User = e.GetValue()
		}
	}
	if e := d.GetEntries(); c.req.APIKey == "" && c.req.User == "" && !c.req.IP.IsValid() && len(e) > 0 {
		c.req.APIKey = e[0].GetValue() // rather than all clients as one
	}
}

// appendSubject appends the name of a descriptor's counter, without ambiguities: the domain, and each key with its
// value, or with the pattern for all values that share a counter.
func (c *call) appendSubject(domain string, d *ratelimit.RateLimitDescriptor, l *limit) {
	c.appendText(0, domain)
	for i, e := range d.GetEntries() {
		c.appendText(0, e.GetKey())
		if i < len(l.patterns) && l.patterns[i] != "" {
			c.appendText(1, l.patterns[i])
		} else {
			c.appendText(0, e.GetValue())
		}
	}
}

func (c *call) appendText(kind uint64, text string) {
	c.subjects = binary.AppendUvarint(c.subjects, uint64(len(text))<<1|kind)
	c.subjects = append(c.subjects, text...)
}

// taken is what the store took for the charges.
func (c *call) taken(d *weir.Decision) (returns []counter.Return) {
	for i, l := range d.Limits()[:len(c.charges)] {
		if ch := &c.charges[i]; l.Allowed && !l.Degraded && !l.Local && !ch.Peek {
			returns = append(returns, counter.Return{Counter: ch.Counter, N: ch.N})
		}
	}
	return returns
}

// overrides remembers the limits that requests carried lately, since preparing one costs more than deciding by it.
type overrides struct {
	likeTheirs bool // they count as those of a configuration do
	modes      Modes
	recent     recent.Cache[override, *limit]
}

type override struct {
	perUnit uint32
	unit    rls.RateLimitResponse_RateLimit_Unit
}

// overrideRule is the name of all of them in metrics.
const overrideRule = "envoy.override"

func (o *overrides) get(from *ratelimit.RateLimitDescriptor_RateLimitOverride) (*limit, error) {
	key := override{from.GetRequestsPerUnit(), rls.RateLimitResponse_RateLimit_Unit(from.GetUnit())}
	return o.recent.Get(key, o.prepare)
}

func (o *overrides) prepare(key override) (override, *limit, error) {
	l, err := newLimit(overrideRule, "", key.perUnit, key.unit)
	if err != nil {
		return key, nil, bad("limit: %v", err)
	}
	l.hard.CountRefused = o.likeTheirs
	l.soften(o.modes)
	return key, l, nil
}

// remaining is what answers show as left of a limit.
func remaining(l *limit, s *weir.LimitStatus) uint32 {
	if l.closed() {
		return 0
	}
	return uint32(min(s.Remaining, math.MaxUint32))
}
