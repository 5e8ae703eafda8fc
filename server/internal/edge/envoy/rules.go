package envoy

import (
	"bytes"
	"context"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// attributes are what keys of descriptors stand for, unless the operator says otherwise. A key that isn't here is an
// attribute of its own name: attr:KEY. The domain is attr:domain.
var attributes = map[string]string{
	"api_key": "api_key", "user": "user", "org": "org", "tier": "tier", "method": "method", "path": "path",
	"remote_address": "ip", "masked_remote_address": "ip",
}

// Attributes are the names that a key can be mapped to, beside attr:NAME, header:NAME and claim:NAME.
var Attributes = []string{"api_key", "user", "org", "tier", "ip", "method", "path"}

// part is descriptors of a request that are decided together, since they say different things of one
// request. Those that contradict each other, or stand for other hits, are apart.
type part struct {
	req     weir.Request
	entries []*ratelimit.RateLimitDescriptor_Entry
	indices []int // of the descriptors
	back    bool  // the hits are given back
	weir.Decision
}

// byRules has the rules decide a request. Descriptors that carry a limit, or that a rule names, are decided first, each by that
// limit or rule alone.
func (s *Service) byRules(ctx context.Context, c *call, req *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	now := s.limiter.Now()
	a := newAnswer(&s.opts, req)
	refused := false
	var took []counter.Return // for them
	if err := c.match(s.link().config, req, &s.overrides); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(c.hits, func(h hit) bool { return h.limit != nil }) {
		c.charge(req, false)
		d, err := s.limiter.Take(ctx, &c.req, c.charges)
		s.failed(err)
		if len(c.returns) > 0 {
			s.failed(s.limiter.GiveBack(ctx, c.returns))
		}
		if refused = a.decided(c, &d); !refused {
			took = c.taken(&d)
		}
	}
	first := refused
	parts := s.split(c, req)
	binding := (*part)(nil)
	for i := range parts {
		p := &parts[i]
		if p.back {
			s.failed(s.limiter.Credit(ctx, &p.req))
			p.Allowed = true
			continue
		}
		p.req.Peek = p.req.Peek || refused // a refusal takes nothing
		p.req.Receipt = i < len(parts)-1   // for should a later one be refused
		var err error
		p.Decision, err = s.limiter.Check(ctx, &p.req)
		s.failed(err)
		refused = refused || !p.Allowed
		if binding == nil || !p.Allowed && binding.Allowed || p.Allowed == binding.Allowed && p.Remaining < binding.Remaining {
			binding = p
		}
	}
	if refused && len(took) > 0 {
		s.failed(s.limiter.GiveBack(ctx, took))
	}
	for i := range parts {
		p := &parts[i]
		if refused && p.Allowed && !p.back && !p.req.Peek {
			s.failed(s.limiter.Finish(ctx, &p.Decision, weir.Outcome{Abandoned: true}))
		}
		for _, at := range p.indices {
			p.status(a.Statuses[at])
		}
	}
	a.OverallCode = rls.RateLimitResponse_OK
	if refused {
		a.OverallCode = rls.RateLimitResponse_OVER_LIMIT
	}
	if binding == nil || first {
		return a.response(), nil
	}
	s.dress(&a, binding, now)
	if s.opts.Answers.DynamicMetadata {
		a.DynamicMetadata = a.describe()
	}
	return a.RateLimitResponse, nil
}

// split makes requests of the descriptors that are not decided yet.
func (s *Service) split(c *call, req *rls.RateLimitRequest) []part {
	parts := make([]part, 0, 1)
	for i, d := range req.Descriptors {
		if c.hits[i].limit != nil {
			continue
		}
		n := hits(req, d)
		at := slices.IndexFunc(parts, func(p part) bool {
			return p.back == d.GetIsNegativeHits() && p.req.Cost == n && !contradicts(p.entries, d.GetEntries())
		})
		if at < 0 {
			at = len(parts)
			parts = append(parts, part{back: d.GetIsNegativeHits(), req: weir.Request{Edge: edge, KeyVerified: true, TierVerified: true, Cost: n, Peek: n == 0}})
		}
		p := &parts[at]
		p.indices = append(p.indices, i)
		p.entries = append(p.entries, d.GetEntries()...)
	}
	for i := range parts {
		p := &parts[i]
		for _, e := range p.entries {
			s.set(&p.req, e.GetKey(), e.GetValue())
		}
		p.req.Attr = func(name string) string { return s.attribute(p, req.Domain, name) }
	}
	return parts
}

// contradicts reports whether two descriptors have a key with different values.
func contradicts(a, b []*ratelimit.RateLimitDescriptor_Entry) bool {
	for _, x := range a {
		for _, y := range b {
			if x.GetKey() == y.GetKey() && x.GetValue() != y.GetValue() {
				return true
			}
		}
	}
	return false
}

// meaning is what a key stands for.
func (s *Service) meaning(key string) string {
	if name, ok := s.opts.Attributes[key]; ok {
		return name
	}
	return attributes[key]
}

// set fills in the field of a request that a key stands for.
func (s *Service) set(req *weir.Request, key, value string) {
	switch s.meaning(key) {
	case "api_key":
		req.APIKey = value
	case "user":
		req.User = value
	case "org":
		req.Org = value
	case "tier":
		req.Tier = value
	case "method":
		req.Method = value
	case "path": // Envoy's :path has the query, too
		req.Path, _, _ = strings.Cut(value, "?")
	case "ip":
		address, _, _ := strings.Cut(value, "/") // of a masked one, the network
		if ip, err := netip.ParseAddr(address); err == nil {
			req.IP = ip.WithZone("")
		}
	}
}

// attribute looks up what else rules may count by.
func (s *Service) attribute(p *part, domain, name string) string {
	bare := strings.TrimPrefix(name, "attr:")
	for _, e := range p.entries {
		switch named := s.meaning(e.GetKey()); {
		case named == "" && e.GetKey() == bare:
			return e.GetValue()
		case named != "" && (strings.TrimPrefix(named, "attr:") == bare || strings.HasPrefix(named, "header:") && strings.EqualFold(named, bare)):
			return e.GetValue()
		}
	}
	if bare == "domain" {
		return domain
	}
	return ""
}

// status says how a descriptor stands.
func (p *part) status(st *rls.RateLimitResponse_DescriptorStatus) {
	st.Code = rls.RateLimitResponse_OK
	after := p.ResetAfter
	if !p.Allowed {
		st.Code = rls.RateLimitResponse_OVER_LIMIT
		if p.RetryAfter > 0 {
			after = p.RetryAfter
		}
	}
	if p.Policy == nil || p.Uncounted() {
		return
	}
	st.CurrentLimit = wire(p.Policy)
	if p.Allowed {
		st.LimitRemaining = uint32(min(p.Remaining, math.MaxUint32))
	}
	st.DurationUntilReset = &durationpb.Duration{Seconds: seconds(after)}
}

// wire shows a limit in the units of the service: 43 in 10 s are 43 per SECOND with a multiplier of 10. Requests in flight have
// no unit there, and a limit on them isn't shown.
func wire(p *counter.Policy) *rls.RateLimitResponse_RateLimit {
	if p.Limit.Algorithm == weir.Concurrency {
		return nil
	}
	unit, length := rls.RateLimitResponse_RateLimit_SECOND, time.Second
	for u, l := range units {
		if l > length && p.Limit.Window >= l && p.Limit.Window%l == 0 {
			unit, length = u, l
		}
	}
	if p.Limit.Calendar.Unit == weir.Month {
		unit, length = rls.RateLimitResponse_RateLimit_MONTH, p.Limit.Window
	}
	out := &rls.RateLimitResponse_RateLimit{Name: p.Rule, RequestsPerUnit: uint32(min(p.Limit.Count, math.MaxUint32)), Unit: unit}
	if times := p.Limit.Window / length; times > 1 {
		out.UnitMultiplier = wrapperspb.UInt32(uint32(times))
	}
	return out
}

// dress adds the headers that Weir's other edges send, and of a refusal the body.
func (s *Service) dress(a *answer, p *part, now time.Time) {
	w := recorder{header: http.Header{}}
	s.opts.Rules.SetHeaders(w.header, &p.req, &p.Decision, now)
	if !p.Allowed {
		s.opts.Rules.Refuse(&w, anyRequest, &p.req, &p.Decision, now)
		a.RawBody = w.body.Bytes()
	}
	for name, values := range w.header {
		for _, v := range values {
			a.ResponseHeadersToAdd = append(a.ResponseHeadersToAdd, &core.HeaderValue{Key: name, Value: v})
		}
	}
	slices.SortFunc(a.ResponseHeadersToAdd, func(a, b *core.HeaderValue) int { return strings.Compare(a.Key, b.Key) })
}

// anyRequest stands for the client's: Envoy doesn't say which answers it accepts.
var anyRequest = &http.Request{Method: http.MethodGet, Header: http.Header{}}

// recorder keeps what is written for a client, to be sent by Envoy.
type recorder struct {
	header http.Header
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(int)             {}
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
