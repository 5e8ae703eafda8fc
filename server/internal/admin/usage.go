package admin

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/jsonerror"
	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/rulefile"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
	"github.com/weirhq/weir/server/internal/observe/top"
)

func (a *API) usage(r *call, doc *inforce.Document) (any, *jsonerror.Error) {
	out, err := a.Top.Rules(r.Context())
	if err != nil {
		return nil, hourFault(err)
	}
	out.Rules = withUnused(doc, "", out.Rules, func(u top.HourRule) (string, bool) { return u.Rule, u.Requests > 0 },
		func(id string) top.HourRule { return top.HourRule{Rule: id, Coverage: 1} })
	return out, nil
}

// withUnused adds the rules in force that have had no requests, and removes rules that are no longer in force and no
// longer used. Limits without a rule, such as those of POST /v1/take, stay while they are used.
func withUnused[T any](doc *inforce.Document, only string, all []T, about func(T) (id string, used bool), unused func(id string) T) []T {
	inForce := map[string]bool{}
	for _, r := range doc.File.Rules.Rules {
		inForce[r.ID] = only == "" || r.ID == only
	}
	all = slices.DeleteFunc(all, func(u T) bool {
		id, used := about(u)
		removed := !inForce[id] && !used
		delete(inForce, id)
		return removed
	})
	for id, wanted := range inForce {
		if wanted {
			all = append(all, unused(id))
		}
	}
	slices.SortFunc(all, func(a, b T) int {
		first, _ := about(a)
		second, _ := about(b)
		return strings.Compare(first, second)
	})
	return all
}

// mostUsage is the maximum number of a rule's keys in a response, each with its last hour.
const mostUsage = 1000

func (a *API) usageOf(r *call, doc *inforce.Document) (any, *jsonerror.Error) {
	q, f := r.query(mostUsage)
	if f != nil {
		return nil, f
	}
	q.Rule = r.PathValue("id")
	out, err := a.Top.Rule(r.Context(), q)
	if err != nil {
		return nil, hourFault(err)
	}
	if out.Requests == 0 && findRule(doc, q.Rule) == nil {
		return nil, noRule(q.Rule)
	}
	return out, nil
}

func findRule(doc *inforce.Document, id string) *weir.Rule {
	for i, r := range doc.File.Rules.Rules {
		if r.ID == id {
			return &doc.File.Rules.Rules[i]
		}
	}
	return nil
}

func noRule(id string) *jsonerror.Error {
	return jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "there is no rule %q: weir rules show and GET /v1/rules list the rules", shown.Name(id))
}

func (r *call) query(most int64) (top.Query, *jsonerror.Error) {
	values := r.URL.Query()
	by := values.Get("by")
	q := top.Query{Rule: values.Get("rule"), Refused: by == "refused"}
	if by != "" && by != "requests" && by != "refused" {
		return q, jsonerror.Bad("by: must be requests or refused")
	}
	k, f := r.number("k", usualTop, most)
	q.K = int(k)
	return q, f
}

func (a *API) client(r *call, doc *inforce.Document) (any, *jsonerror.Error) {
	in, f := decode[ClientName](r, checkapi.MaxBody)
	if f != nil {
		return nil, f
	}
	who, f := in.identity()
	if f != nil {
		return nil, f
	}
	hour, who, err := a.Top.Client(r.Context(), who, in.Client)
	if err != nil {
		return nil, clientFault(err)
	}
	out := ClientPage{HourOfClient: hour, Overrides: []OverrideOf{}}
	if who.Value != "" && (who.Kind == "api_key" || who.Kind == "ip") {
		out.Blocked, out.Allowed = private.Covers(a.Limiter.Rules(), who.Value) // Covers includes the emergency list
	}
	if who.Kind != "api_key" {
		return out, nil
	}
	for _, rule := range doc.File.Rules.Rules {
		for _, l := range rule.Override[who.Value] {
			out.Overrides = append(out.Overrides, OverrideOf{rule.ID, l.String(), l.Burst, doc.File.Expiry(rule.ID, who.Value)})
		}
	}
	return out, nil
}

// identity returns the client that the body names by a key, a user or an address. If the body has a fingerprint, it
// returns an empty identity.
func (c *ClientName) identity() (top.Identity, *jsonerror.Error) {
	all := []top.Identity{{Kind: "api_key", Value: c.Key}, {Kind: "user", Value: c.User}, {Kind: "ip", Value: c.IP}}
	all = slices.DeleteFunc(all, func(i top.Identity) bool { return i.Value == "" })
	switch {
	case len(all) == 0 && c.Client != "":
		return top.Identity{}, nil
	case len(all) != 1 || c.Client != "":
		return top.Identity{}, jsonerror.Bad(`name one client: {"key": …}, {"user": …}, {"ip": …}, or {"client": …} with its fingerprint`)
	case c.IP == "":
		return all[0], nil
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(c.IP, "/64"))
	if err != nil {
		return top.Identity{}, jsonerror.Bad("ip: must be an address such as 203.0.113.7 or 2001:db8::1")
	}
	return top.NewIP(addr), nil
}

func hourFault(err error) *jsonerror.Error { return retryLater(jsonerror.Busy, "1", "%v", err) }

func retryLater(code, seconds, format string, args ...any) *jsonerror.Error {
	f := jsonerror.New(http.StatusServiceUnavailable, code, format, args...)
	f.Header = http.Header{"Retry-After": {seconds}}
	return f
}

// clientFault returns the response to a fingerprint that doesn't identify exactly one client.
func clientFault(err error) *jsonerror.Error {
	switch {
	case errors.Is(err, top.ErrBusy):
		return hourFault(err)
	case errors.Is(err, top.ErrAmbiguousClient):
		return jsonerror.New(http.StatusConflict, jsonerror.AmbiguousClient, "client: %v", err)
	case errors.Is(err, top.ErrFingerprint):
		return jsonerror.Bad("client: %v", err)
	}
	return jsonerror.New(http.StatusNotFound, jsonerror.NotFound, "client: %v", err)
}

func (a *API) whatIf(r *call, doc *inforce.Document) (any, *jsonerror.Error) {
	in, f := decode[WhatIf](r, rulefile.MaxSize)
	if f != nil {
		return nil, f
	}
	rule := findRule(doc, in.Rule)
	if rule == nil {
		return nil, noRule(in.Rule)
	}
	policy, f := in.policy(rule)
	if f != nil {
		return nil, f
	}
	arrivals, err := a.Top.Arrivals(r.Context(), in.Rule)
	if err != nil {
		return nil, hourFault(err)
	}
	out := WhatIfAnswer{Notes: []string{}}
	if f := r.inTurn(func() { out.WhatIf = arrivals.Under(r.Context(), policy) }); f != nil {
		return nil, f
	}
	out.note(rule, policy.Limit)
	return out, nil
}

func (in *WhatIf) policy(rule *weir.Rule) (*counter.Policy, *jsonerror.Error) {
	n, f := in.read()
	if f != nil {
		return nil, f
	}
	switch { // only the cost of requests is remembered for the last hour, so the limit must count that
	case rule.Amount != "":
		return nil, jsonerror.Bad("the rule counts %s, and only what requests cost is remembered: try the number as a `candidate`", rule.Amount)
	case rule.Algorithm == weir.Concurrency:
		return nil, jsonerror.Bad("the rule counts requests in flight, and it isn't remembered how long each was: try the number as a `candidate`")
	}
	switch {
	case n.Limit == "" && len(rule.Limits) > 0:
		n.Limit = rule.Limits[0].String()
	case n.Limit != "" && !strings.ContainsAny(n.Limit, "/ ") && len(rule.Limits) > 0:
		n.Limit += "/" + strings.SplitAfterN(rule.Limits[0].String(), "/", 2)[1] // if there is only a number, the limit keeps the rule's window, as in other changes
	}
	limit, err := weir.ParseLimit(n.Limit)
	if err != nil {
		return nil, jsonerror.Bad("limit: %v", err)
	}
	limit.Algorithm, limit.Burst, limit.MaxDelay = rule.Algorithm, n.Capacity, rule.MaxDelay
	if limit.Calendar.Unit != counter.NoUnit {
		limit.Algorithm = weir.FixedWindow // the only algorithm that supports calendars
	}
	if in.Algorithm != "" {
		var names []string
		for limit.Algorithm = 0; limit.Algorithm.String() != in.Algorithm; limit.Algorithm++ {
			if limit.Algorithm > weir.SlidingCounter {
				return nil, jsonerror.Bad("algorithm: must be one of %s", strings.Join(names, ", "))
			}
			names = append(names, limit.Algorithm.String())
		}
	}
	switch {
	case limit.Algorithm != weir.LeakyQueue:
		limit.MaxDelay = 0
	case limit.MaxDelay == 0:
		limit.MaxDelay = 30 * time.Second
	}
	p, err := counter.Define(counter.Definition{
		Name: rule.ID, Limit: limit, Book: rule.Book, CountRefused: rule.CountRefused && limit.Algorithm == weir.FixedWindow,
	})
	if err != nil {
		return nil, jsonerror.Bad("%v", err)
	}
	return p, nil
}

func (out *WhatIfAnswer) note(rule *weir.Rule, asked weir.Limit) {
	add := func(given bool, text string) {
		if given {
			out.Notes = append(out.Notes, text)
		}
	}
	add(len(rule.Statuses) > 0, "the rule counts by the answers' statuses, which aren't remembered: every request is taken as counted, so fewer would have been refused")
	add(rule.Book, "the rule books what comes too late to be refused: it refuses only peeks, which aren't remembered")
	add(len(rule.Tiers) > 0 || len(rule.Limits) == 0, "the rule's numbers depend on the tier, which isn't remembered: keys of all tiers are held against this limit")
	add(len(rule.Limits) > 1, fmt.Sprintf("the limit stands in the place of all %d that the rule has", len(rule.Limits)))
	add(asked.Burst == 0 && slices.ContainsFunc(rule.Limits, func(l weir.Limit) bool { return l.Burst > 0 }), "the rule's burst is left out: this limit lets as much through at once as its count, unless it is asked about with a burst of its own")
	add(out.Elsewhere > 0, fmt.Sprintf("%d of the requests were refused by other rules alone: they take nothing, and aren't counted as refused here", out.Elsewhere))
	add(out.LeftOut > 0, fmt.Sprintf("%d requests of the hour aren't remembered with their keys, so would_refuse may be too low by as many", out.LeftOut))
	add(out.KeysSpecial > 0, "keys with an override keep it: they count with what was refused")
}

// usualTop is how many clients are listed by default. mostTop is the maximum, because nodes don't send each other many
// more.
const (
	usualTop = 50
	mostTop  = 200
)

func (a *API) top(r *call) (any, *jsonerror.Error) {
	q, f := r.query(mostTop)
	if f != nil {
		return nil, f
	}
	out := a.Top.Hot(r.Context(), q)
	out.Rules = withUnused(a.Rules.InForce(), q.Rule, out.Rules, func(u top.RuleUse) (string, bool) { return u.Rule, u.Requests > 0 },
		func(id string) top.RuleUse { return top.RuleUse{Rule: id} })
	if q.Rule != "" && len(out.Rules) == 0 {
		return nil, noRule(q.Rule)
	}
	return out, nil
}
