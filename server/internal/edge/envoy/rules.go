package envoy

import (
	"cmp"
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
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/server/internal/edge"
)

// attributes maps keys of descriptors to the request fields that they set by default. Any other key sets the attribute
// attr:KEY. The domain sets attr:domain.
var attributes = map[string]string{
	"api_key": "api_key", "user": "user", "org": "org", "tier": "tier", "method": "method", "path": "path",
	"remote_address": "ip", "masked_remote_address": "ip",
}

// Attributes are the fields of a request to which a key can be mapped, in addition to attr:NAME, header:NAME and
// claim:NAME.
var Attributes = []string{"api_key", "user", "org", "tier", "ip", "method", "path"}

// part is a group of descriptors that are decided together, as one request. Descriptors that contradict each other, or
// have different numbers of hits, are in different groups.
type part struct {
	req     weir.Request
	entries []*ratelimit.RateLimitDescriptor_Entry
	indices []int // indices of the descriptors
	weir.Decision
}

// byRules decides a request by the rules. If a descriptor carries a limit, or if a rule names it, only that limit or
// rule is charged. The other descriptors become requests that all rules decide.
func (s *Service) byRules(ctx context.Context, c *evaluation) *rls.RateLimitResponse {
	now := private.Now(s.limiter)
	c.req.KeyVerified, c.req.TierVerified = true, true
	parts, back := s.split(c)
	for i := range back {
		s.failed(private.Credit(s.limiter, ctx, &back[i].req))
		back[i].Allowed = true
	}
	requests := make([]*weir.Request, len(parts))
	for i := range parts {
		requests[i] = &parts[i].req
	}
	all, each := weir.Decision{Allowed: true}, make([]weir.Decision, len(requests))
	if len(requests)+len(c.charges) > 0 {
		var err error
		all, err = private.CheckTogether(s.limiter, ctx, &c.req, c.charges, requests, each)
		s.failed(err)
	}
	if len(c.returns) > 0 {
		s.failed(private.GiveBack(s.limiter, ctx, c.returns))
	}
	var own []weir.LimitStatus
	if all.Reason != weir.ReasonCooldown {
		own = all.Limits()
	}
	refused := c.decided(own)
	binding := (*part)(nil)
	for i := range parts {
		p := &parts[i]
		p.Decision = each[i]
		if binding == nil || !p.Allowed && binding.Allowed || p.Allowed == binding.Allowed && p.Remaining < binding.Remaining {
			binding = p
		}
	}
	for _, list := range [][]part{parts, back} {
		for i := range list {
			for _, at := range list[i].indices {
				list[i].status(c.out.Statuses[at])
			}
		}
	}
	if !all.Allowed {
		c.out.OverallCode = rls.RateLimitResponse_OVER_LIMIT
	}
	if binding == nil || refused {
		return c.response()
	}
	s.dress(c.out, binding, now)
	c.describe()
	return c.out
}

// split makes requests from the descriptors that have no limit of their own. back has the requests whose hits are given
// back.
func (s *Service) split(c *evaluation) (parts, back []part) {
	for i, d := range c.in.Descriptors {
		if c.hits[i].limit != nil {
			continue
		}
		list, n := &parts, c.hits[i].n
		if c.hits[i].back {
			list = &back
		}
		at := slices.IndexFunc(*list, func(p part) bool { return p.req.Cost == n && !contradicts(p.entries, d.GetEntries()) })
		if at < 0 {
			at = len(*list)
			*list = append(*list, part{req: weir.Request{Edge: edgeName, KeyVerified: true, TierVerified: true, Cost: n, Peek: n == 0}})
		}
		p := &(*list)[at]
		p.indices = append(p.indices, i)
		p.entries = append(p.entries, d.GetEntries()...)
	}
	for _, list := range [][]part{parts, back} {
		for i := range list {
			p := &list[i]
			for _, e := range p.entries {
				s.set(&p.req, e.GetKey(), e.GetValue())
			}
			p.req.Attr = func(name string) string { return s.attribute(p, c.in.Domain, name) }
		}
	}
	return parts, back
}

func contradicts(a, b []*ratelimit.RateLimitDescriptor_Entry) bool {
	return slices.ContainsFunc(a, func(x *ratelimit.RateLimitDescriptor_Entry) bool {
		return slices.ContainsFunc(b, func(y *ratelimit.RateLimitDescriptor_Entry) bool {
			return x.GetKey() == y.GetKey() && x.GetValue() != y.GetValue()
		})
	})
}

func (s *Service) meaning(key string) string { return cmp.Or(s.opts.Attributes[key], attributes[key]) }

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
	case "path": // Envoy's :path includes the query
		req.Path, _, _ = strings.Cut(value, "?")
	case "ip":
		address, _, _ := strings.Cut(value, "/") // a masked address may be written as a network
		if ip, err := netip.ParseAddr(address); err == nil {
			req.IP = ip.WithZone("")
		}
	}
}

// attribute returns the value of any other attribute that rules may count by.
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

func (p *part) status(st *rls.RateLimitResponse_DescriptorStatus) {
	st.Code = rls.RateLimitResponse_OK
	if !p.Allowed {
		st.Code = rls.RateLimitResponse_OVER_LIMIT
	}
	if p.Policy != nil && !p.Uncounted() {
		show(st, wire(p.Policy), p.Allowed, p.Remaining, p.ResetAfter, p.RetryAfter)
	}
}

// wire converts a limit to the protocol's units. For example, 43 in 10 s become 43 per SECOND with a multiplier of 10.
// Concurrency limits have no unit, so it returns nil for them.
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
	if p.Limit.Calendar.Unit == counter.Month {
		unit, length = rls.RateLimitResponse_RateLimit_MONTH, p.Limit.Window
	}
	out := &rls.RateLimitResponse_RateLimit{Name: p.Rule, RequestsPerUnit: uint32(min(p.Limit.Count, math.MaxUint32)), Unit: unit}
	if times := p.Limit.Window / length; times > 1 {
		out.UnitMultiplier = wrapperspb.UInt32(uint32(times))
	}
	return out
}

// dress adds the headers that Weir's other edges send and, to a refusal, the body.
func (s *Service) dress(out *rls.RateLimitResponse, p *part, now time.Time) {
	w := edge.Recorder{Head: http.Header{}}
	s.opts.Rules.SetHeaders(w.Head, &p.req, &p.Decision, now)
	if !p.Allowed {
		s.opts.Rules.Refuse(&w, anyRequest, &p.req, &p.Decision, now)
		out.RawBody = w.Body.Bytes()
	}
	out.ResponseHeadersToAdd = make([]*core.HeaderValue, 0, len(w.Head))
	for name, values := range w.Head {
		for _, v := range values {
			out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, &core.HeaderValue{Key: name, Value: v})
		}
	}
	slices.SortFunc(out.ResponseHeadersToAdd, func(a, b *core.HeaderValue) int { return strings.Compare(a.Key, b.Key) })
}

// anyRequest is used in place of the client's request, because Envoy doesn't say which media types the client accepts.
var anyRequest = &http.Request{Method: http.MethodGet, Header: http.Header{}}
