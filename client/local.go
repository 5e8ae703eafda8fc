package client

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/private"
)

// local has the fallback decide, because of the error why.
func (c *Client) local(ctx context.Context, req *Request, why error) Decision {
	r := weir.Request{
		Edge: "client", APIKey: req.Key, KeyVerified: true, User: req.User, Org: req.Org, Tier: req.Tier, TierVerified: true,
		IP: req.IP.WithZone(""), Method: req.Method, Path: req.Path, Cost: req.Cost, Peek: req.Peek, Amounts: req.Amounts,
		Attr: func(name string) string {
			for k, v := range req.Attributes {
				if sameAttribute(k, name) {
					return v
				}
			}
			return ""
		},
	}
	ld, _ := c.fallback.Check(ctx, &r) // the error says that a store is down, but the decision is good
	d := Decision{
		Allowed: ld.Allowed, Status: http.StatusOK, Rule: ld.Rule, Limit: -1, Remaining: -1, RetryAfter: ld.RetryAfter,
		ResetAfter: ld.ResetAfter, Delay: ld.Delay, Degraded: true, Unreached: why, RulesVersion: ld.RulesVersion,
	}
	if ld.Policy != nil && !ld.Uncounted() {
		d.Limit, d.Burst, d.Remaining = ld.Policy.Limit.Count, burst(ld.Policy), ld.Remaining
	}
	if d.SlotTTL = ld.Slots(); d.SlotTTL > 0 {
		d.held = &ld
	}
	if !d.Allowed {
		d.Status, d.Code = refusal(&ld)
		d.Reason, d.Message = ld.Reason.String(), "refused by this process, as Weir can't be reached"
		d.RetryIsGuess = ld.RetryAfter > 0 && ld.Policy != nil && ld.Policy.Limit.Algorithm == weir.Concurrency
	}
	for _, l := range ld.Limits() {
		p := l.Policy
		s := LimitStatus{
			Rule: p.Rule, Allowed: l.Allowed, Amount: p.Amount, Limit: p.Limit.Count, Burst: burst(p), Remaining: l.Remaining,
			LimitAmount: p.Limit.Amount(), Left: l.Left(), Shadow: p.Shadow,
		}
		if p.Limit.Algorithm == weir.FixedWindow && (p.Amount != "" || p.Limit.Calendar.Unit != counter.NoUnit) {
			s.WindowEnd = private.Now(c.fallback).Add(l.ResetAfter).UTC().Round(time.Second)
		}
		d.Limits = append(d.Limits, s)
	}
	return d
}

// burst returns how much can be left of a limit at most, or 0 if that is its count.
func burst(p *counter.Policy) int64 {
	if most := p.Limit.Max(); most != p.Limit.Count {
		return most
	}
	return 0
}

// sameAttribute compares names as the check API does: attr:region equals region, and names of headers
// are case-insensitive.
func sameAttribute(a, b string) bool {
	a, b = strings.TrimPrefix(a, "attr:"), strings.TrimPrefix(b, "attr:")
	return a == b || strings.HasPrefix(a, "header:") && strings.EqualFold(a, b)
}

// refusal returns the status and the code with which Weir answers a refusal.
func refusal(d *weir.Decision) (status int, code string) {
	switch d.Reason {
	case weir.ReasonCooldown:
		return http.StatusTooManyRequests, jsonerror.Cooldown
	case weir.ReasonDenied:
		return http.StatusForbidden, jsonerror.KeyBlocked
	case weir.ReasonIdentityRequired:
		return http.StatusForbidden, jsonerror.IdentityRequired
	case weir.ReasonUnreadablePath:
		return http.StatusBadRequest, jsonerror.UnreadablePath
	case weir.ReasonUnavailable:
		return http.StatusServiceUnavailable, jsonerror.LimiterUnavailable
	}
	return http.StatusTooManyRequests, jsonerror.RateLimitExceeded
}
