package envoy

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
)

type evaluation struct {
	opts     *Options
	in       *rls.RateLimitRequest
	out      *rls.RateLimitResponse
	req      weir.Request
	hits     []matched // one for each descriptor
	charges  []counter.Charge
	returns  []counter.Return
	spent    bool          // the limiter has allowed the request, but it is refused, because all of its quotas are exhausted
	binding  int           // index of the status that headers describe, or -1
	wait     time.Duration // the longest wait among the limits that refuse
	metadata *structpb.Struct
}

// matched is a descriptor of a request, and the limit that the configuration has for it.
type matched struct {
	limit    *limit // nil if the descriptor has none
	n        int64  // number of hits; if 0, the limit is only read
	back     bool   // the hits are given back, not taken
	replaced bool   // another limit of the request replaces this limit
	at       int    // index of the descriptor's charge + 1; 0 if it has none
}

// byConfig decides a request by the configuration. together reports that the request has several quotas.
func (s *Service) byConfig(ctx context.Context, c *evaluation, together bool) *rls.RateLimitResponse {
	var override func(*weir.Decision)
	if together {
		override = c.together
	}
	d, err := private.Take(s.limiter, ctx, &c.req, c.charges, override)
	s.failed(err)
	if len(c.returns) > 0 {
		s.failed(private.GiveBack(s.limiter, ctx, c.returns))
	}
	if !together {
		c.decided(d.Limits())
	}
	if c.spent {
		s.failed(private.GiveBack(s.limiter, ctx, c.taken(&d))) // give back what the other limits have taken
	}
	return c.response()
}

// together decides a request with several quotas, for which the limiter doesn't refuse. If all quotas are exhausted, it
// changes the decision to a refusal by the quota with the longest wait.
func (c *evaluation) together(d *weir.Decision) {
	if refused := c.decided(d.Limits()); !refused || !d.Allowed {
		return
	}
	c.spent = true
	d.Allowed, d.Reason, d.RetryAfter = false, weir.ReasonLimited, 0
	limits := d.Limits()
	for i := range c.hits {
		h := &c.hits[i]
		if h.at == 0 || !h.limit.quota || h.limit.shadow {
			continue
		}
		if l := &limits[h.at-1]; l.RetryAfter >= d.RetryAfter {
			d.Rule, d.Policy, d.Remaining, d.RetryAfter, d.ResetAfter = l.Policy.Rule, l.Policy, 0, l.RetryAfter, l.ResetAfter
		}
	}
}

func (s *Service) match(c *evaluation, config *Config, req *rls.RateLimitRequest) error {
	top, known := config.domains[req.Domain]
	known = known || config.anyDomain
	for _, d := range req.Descriptors {
		h := matched{n: hits(req, d), back: d.GetIsNegativeHits()}
		switch {
		case !known:
		case d.GetLimit() != nil:
			var err error
			if h.limit, err = s.carried(d.GetLimit()); err != nil {
				return err
			}
		default:
			h.limit = top.limit(d.GetEntries())
		}
		c.hits = append(c.hits, h)
	}
	return nil
}

func (l level) limit(entries []*ratelimit.RateLimitDescriptor_Entry) *limit {
	d := &descriptor{} // the result if the request's descriptor has no entries
	for _, e := range entries {
		if d = l.find(e.GetKey(), e.GetValue()); d == nil {
			return nil
		}
		l = d.below
	}
	return d.limit
}

// replace drops limits that other limits of the request replace. It returns how many descriptors are in quota_mode. If
// all limits are in quota_mode, a descriptor without a limit counts as a quota that isn't exhausted.
func (c *evaluation) replace(global Modes) (quotas int) {
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

// charge makes the request's charges, and the returns for hits that are given back. together reports that the request
// has several quotas.
func (s *Service) charge(c *evaluation, req *rls.RateLimitRequest, together bool) {
	c.req.Edge, c.req.Cost = edgeName, 1
	for i := range c.hits {
		h, d := &c.hits[i], req.Descriptors[i]
		s.identify(&c.req, d)
		l := h.limit
		if l == nil || l.unlimited() {
			continue
		}
		of := counter.Counter{Policy: l.hard, Subject: subject(req.Domain, d, l)}
		if together && l.quota {
			of.Policy = l.soft
		}
		if h.back {
			c.returns = append(c.returns, counter.Return{Counter: of, N: h.n})
			continue
		}
		n := h.n
		if n == 0 && !of.Policy.CountRefused { // a peek for 0 finds out whether a counter with CountRefused is past its limit; for other counters, peek for 1
			n = 1
		}
		if n > 0 && l.closed() { // the policy has one token, so a charge of more is always refused
			n++
		}
		c.charges = append(c.charges, counter.Charge{Counter: of, N: n, Peek: h.n == 0})
		h.at = len(c.charges)
	}
	c.req.Peek = len(c.charges) > 0 && !slices.ContainsFunc(c.charges, func(ch counter.Charge) bool { return !ch.Peek })
}

// identify sets the client of a request. The client is used by the limit by address that applies while the store can't
// be reached, and in lists of busy clients.
func (s *Service) identify(req *weir.Request, d *ratelimit.RateLimitDescriptor) {
	for _, e := range d.GetEntries() {
		s.set(req, e.GetKey(), e.GetValue())
	}
	if e := d.GetEntries(); req.APIKey == "" && req.User == "" && !req.IP.IsValid() && len(e) > 0 {
		req.APIKey = e[0].GetValue() // otherwise, all these requests would count as one client
	}
}

// subject returns the unambiguous subject of a descriptor's counter. It has the domain, and each key with its value. If
// several values share the counter, it has their pattern in place of the value.
func subject(domain string, d *ratelimit.RateLimitDescriptor, l *limit) []byte {
	b := appendText(make([]byte, 0, 64), 0, domain)
	for i, e := range d.GetEntries() {
		b = appendText(b, 0, e.GetKey())
		if i < len(l.patterns) && l.patterns[i] != "" {
			b = appendText(b, 1, l.patterns[i])
		} else {
			b = appendText(b, 0, e.GetValue())
		}
	}
	return b
}

func appendText(b []byte, kind uint64, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))<<1|kind), text...)
}

func (c *evaluation) taken(d *weir.Decision) (returns []counter.Return) {
	for i, l := range d.Limits()[:len(c.charges)] {
		if ch := &c.charges[i]; l.Allowed && !l.Degraded && !l.Local && !ch.Peek {
			returns = append(returns, counter.Return{Counter: ch.Counter, N: ch.N})
		}
	}
	return returns
}

type override struct {
	perUnit uint32
	unit    rls.RateLimitResponse_RateLimit_Unit
}

// carried returns the limit that a request carries. If there is a configuration, the limit counts in the same way as
// the configuration's limits.
func (s *Service) carried(from *ratelimit.RateLimitDescriptor_RateLimitOverride) (*limit, error) {
	key := override{from.GetRequestsPerUnit(), rls.RateLimitResponse_RateLimit_Unit(from.GetUnit())}
	return s.overrides.Get(key, func(key override) (override, *limit, error) {
		l, err := newLimit("envoy.override", "", key.perUnit, key.unit)
		if err != nil {
			return key, nil, bad("limit: %v", err)
		}
		l.hard = l.hard.With(func(d *counter.Definition) { d.CountRefused = s.opts.Configured })
		l.soften(s.opts.Modes)
		return key, l, nil
	})
}
