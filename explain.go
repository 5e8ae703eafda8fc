package weir

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirhq/weir/counter"
)

// Explanation says which rules apply to a request, and why the others don't.
type Explanation struct {
	// Reason is ReasonWithin unless a list or a missing identity decides before any counter is asked.
	Reason Reason
	// Pattern is the entry of the allow or deny list that decided, or "".
	Pattern string
	// Paths are the ways in which servers may read the request's path. A rule applies if it matches one of them.
	Paths []string
	// Tier is the request's tier, and TierWhy where it comes from.
	Tier, TierWhy string
	// Ignored lists privileges that the request didn't get, and why.
	Ignored []string
	// Rules lists every rule, in the order of the file, unless a list decided or the path can't be read.
	Rules []RuleExplanation
}

// RuleExplanation is what one rule means for a request.
type RuleExplanation struct {
	ID       string
	Applies  bool
	Why      string // the rule applies or doesn't
	Refuses  bool   // because the request lacks what the rule counts by
	Endpoint string // of the rule's condition, or ""
	// By says what the request is counted by: "api_key", "ip 203.0.113.0/24", "ip (api_key is missing)".
	By []string
	// SharedAddress: the address is unknown, so other clients share the counter.
	SharedAddress bool
	// Cost is how many tokens the request takes, or 0 if the rule counts an amount.
	Cost int64
	// Amount is what the rule counts, or "" for the cost. Charged is how much of it this request takes, and AmountFrom says where
	// that comes from.
	Amount     string
	Charged    counter.Amount
	AmountFrom string
	// Limits are the numbers for this request. From says where they come from, and Source says it in one word: override, rule,
	// rule_tier (the rule's numbers for the request's tier) or tier.
	Limits       []*counter.Policy
	From, Source string
	// Scope says where a Global rule is counted, and what happens while its home can't be reached. "" means in each region.
	Scope string
}

// Explain reports how the rules match a request. It asks no counter.
func (rs *RuleSet) Explain(req *Request) Explanation {
	m := new(match)
	rs.run(req, m)
	x := Explanation{Reason: m.reason, Pattern: m.pattern, Ignored: rs.ignored(req)}
	if m.pattern != "" || m.reason == ReasonUnreadablePath {
		return x
	}
	x.Tier, x.TierWhy = rs.explainTier(m)
	x.Rules = make([]RuleExplanation, len(rs.rules))
	misses := make([]unmet, len(rs.rules))
	for i := 0; i == 0 || i < m.readings.Len(); i++ {
		rs.hold(req, m, i)
		if m.path != nil {
			x.Paths = append(x.Paths, m.pathText())
		}
		for j := range rs.rules {
			if i > 0 && misses[j] == applies {
				continue
			}
			// Of the readings to which a rule doesn't apply, one that it fails by something else than the path says more.
			why := rs.whyNot(&rs.rules[j], req, m)
			if i == 0 || why == applies || misses[j] == unmetEndpoint || misses[j] == unmetRegex {
				misses[j] = why
				x.Rules[j] = rs.explainRule(&rs.rules[j], req, m, why)
			}
		}
	}
	return x
}

// pathText is a reading as people write it.
func (m *match) pathText() string { return string(m.path[:max(1, len(m.path)-1)]) }

func (rs *RuleSet) ignored(req *Request) (out []string) {
	if req.APIKey != "" && !req.KeyVerified {
		if p := rs.allow.MatchKey(req.APIKey); p != "" {
			out = append(out, fmt.Sprintf("allow list entry %s: the key is not verified", p))
		}
		if i := rs.keys.First(req.APIKey); i >= 0 {
			k := rs.doc.Keys[i]
			out = append(out, fmt.Sprintf("tier %s of keys entry %s: the key is not verified", k.Tier, k.Pattern))
		}
	}
	switch {
	case req.Tier == "":
	case !req.TierVerified:
		out = append(out, fmt.Sprintf("tier %s that the request carries: it is not verified", req.Tier))
	case !rs.tiers[req.Tier]:
		out = append(out, fmt.Sprintf("tier %s that the request carries: the rules don't name it", req.Tier))
	}
	return out
}

func (rs *RuleSet) explainTier(m *match) (tier, why string) {
	switch {
	case m.tierWhy == tierCarried:
		return m.tier, "the request carries it"
	case m.tierWhy == tierFromKeys:
		return m.tier, "a keys entry matches"
	case m.tier != "":
		return m.tier, "the default tier"
	}
	return "", "the rules have no tiers"
}

func (rs *RuleSet) explainRule(r *rule, req *Request, m *match, why unmet) RuleExplanation {
	x := RuleExplanation{ID: r.ID, Endpoint: r.Match.Endpoint, Amount: r.Amount}
	if why != applies {
		x.Why = rs.describe(why, r, req, m)
		x.Refuses = why == unmetMissing && r.Missing == MissingRefuse
		return x
	}
	x.Applies, x.Why = true, r.conditions()
	if (r.template != "" || r.byPath) && m.readings.Len() > 1 {
		x.Why += ", where the path is read as " + m.pathText()
	}
	for _, d := range r.by {
		x.By = append(x.By, rs.countedBy(r, d, req, m))
		x.SharedAddress = x.SharedAddress || !req.IP.IsValid() && (d.kind == byIP || rs.value(r, d, req, m) == "")
	}
	x.Limits = append(slices.Clone(r.numbers(req, m.tier)), r.Candidates...)
	x.Source, x.From = r.source(req, m.tier)
	if r.parts > 0 {
		x.From += fmt.Sprintf(", split into %d parts", r.parts)
	}
	x.Scope = r.scopeText()
	if r.Amount != "" {
		n, _ := rs.asked(r, req)
		x.Charged, x.AmountFrom = counter.Amount(n), rs.amountFrom(r, req)
		return x
	}
	for i, o := range m.owners {
		if o.rule == r {
			x.Cost = m.charges[i].N
		}
	}
	return x
}

// amountFrom says where the amount of a request that is charged comes from.
func (rs *RuleSet) amountFrom(r *rule, req *Request) string {
	from, parts := "as the request says", rs.parts(r.Amount, req)
	_, there := req.Amounts[r.Amount]
	_, isMade := made(parts, req.Amounts)
	switch {
	case there:
	case isMade:
		var of []string
		for _, w := range parts {
			if n, ok := req.Amounts[w.Amount]; ok {
				of = append(of, n.String()+" "+w.Amount)
			}
		}
		from = strings.Join(of, ", ") + " by their weights"
		if p := rs.price(r.Amount, req); p != nil {
			from = strings.Join(of, ", ") + " at the price of " + p.Name
		}
	case r.Default > 0:
		from = "the rule's default, since the request doesn't say"
	case req.Peek:
		from = "a peek that doesn't say asks for nothing"
	default:
		return "the request doesn't say, and what it settles is booked"
	}
	if r.cost > 1 {
		from += fmt.Sprintf(", times the rule's cost of %d", r.cost)
	}
	return from
}

// lacksAmount says why a rule doesn't charge a request.
func (rs *RuleSet) lacksAmount(r *rule, req *Request) string {
	text := "the request lacks " + r.Amount
	switch parts := rs.parts(r.Amount, req); {
	case len(parts) > 0:
		var of []string
		for _, w := range parts {
			of = append(of, w.Amount)
		}
		text += " and what it is made of, " + strings.Join(of, ", ")
	case r.Amount == "usd" && len(rs.doc.Prices) > 0:
		if model := rs.model(req); model != "" {
			text += fmt.Sprintf(", and no price is for its model %q", model)
		} else {
			text += ", and names no model whose price it could have"
		}
	}
	return text + "; the rule has no default, and doesn't charge it"
}

// whyNot is what run found of a rule, in the order in which it looked.
func (rs *RuleSet) whyNot(r *rule, req *Request, m *match) unmet {
	switch {
	case r.Descriptor != nil:
		return unmetDescriptor
	case slices.Contains(m.found, r.index):
	case r.endpoint != nil:
		return unmetEndpoint
	case r.Match.EndpointRegex != "":
		return unmetRegex
	default:
		return unmetKeyPattern
	}
	if u := rs.check(r, req, m); u != applies {
		return u
	}
	if !slices.Contains(m.chosen, r) {
		return unmetLayer
	}
	if r.Amount != "" && rs.complete(r, req, m) {
		if _, charged := rs.asked(r, req); !charged {
			return unmetAmount
		}
	}
	if m.reason == ReasonWithin && !slices.ContainsFunc(m.owners, func(o owner) bool { return o.rule == r }) || m.rule == r {
		return unmetMissing
	}
	return applies
}

func (rs *RuleSet) describe(u unmet, r *rule, req *Request, m *match) string {
	switch u {
	case unmetEndpoint:
		return fmt.Sprintf("the path doesn't match endpoint %s", r.Match.Endpoint)
	case unmetMethod:
		return fmt.Sprintf("the method %s isn't that of endpoint %s", req.Method, r.Match.Endpoint)
	case unmetRegex:
		return fmt.Sprintf("the path doesn't match endpoint_regex %s", r.Match.EndpointRegex)
	case unmetKeyPattern:
		return fmt.Sprintf("the key doesn't match api_key_pattern %s", r.Match.APIKeyPattern)
	case unmetKeyAbsent:
		return "the request has a key"
	case unmetKeyPresent:
		return "the request has no key"
	case unmetTier:
		return fmt.Sprintf("the rule is for tier %s, the request is in tier %s", r.Tier, m.tier)
	case unmetPreflight:
		return "a CORS preflight is exempt from rules that don't name OPTIONS: preflight_limit holds instead"
	case unmetDescriptor:
		return fmt.Sprintf("it is for Envoy's descriptor %s alone", "["+strings.Join(r.Descriptor, ", ")+"]")
	case unmetAmount:
		return rs.lacksAmount(r, req)
	case unmetLayer:
		for _, o := range m.chosen {
			if o.Layer == r.Layer {
				return fmt.Sprintf("rule %s of layer %s is more specific", o.ID, r.Layer)
			}
		}
	}
	var lacks []string
	for i, d := range r.by {
		if d.kind != byIP && rs.value(r, d, req, m) == "" {
			lacks = append(lacks, r.dimensions()[i])
		}
	}
	text := "the request lacks " + strings.Join(lacks, ", ")
	if r.Missing == MissingRefuse {
		return text + ", and the rule refuses such requests"
	}
	return text + ", and the rule skips such requests"
}

// complete: the request has what the rule counts by, or the rule doesn't mind.
func (rs *RuleSet) complete(r *rule, req *Request, m *match) bool {
	return r.Missing == MissingIP || !slices.ContainsFunc(r.by, func(d dimension) bool { return d.kind != byIP && rs.value(r, d, req, m) == "" })
}

func (r *rule) conditions() string {
	var all []string
	if r.Match.Endpoint != "" {
		all = append(all, "endpoint "+r.Match.Endpoint)
	}
	if r.Match.EndpointRegex != "" {
		all = append(all, "endpoint_regex "+r.Match.EndpointRegex)
	}
	if r.Match.APIKeyPattern != "" {
		all = append(all, "api_key_pattern "+r.Match.APIKeyPattern)
	} else if r.Tier != "" {
		all = append(all, "tier "+r.Tier)
	}
	if r.Match.NoKey {
		all = append(all, "no key")
	}
	if r.Match.HasKey {
		all = append(all, "a key")
	}
	if len(all) == 0 {
		return "it has no conditions"
	}
	return "it matches " + strings.Join(all, " and ")
}

func (rs *RuleSet) countedBy(r *rule, d dimension, req *Request, m *match) string {
	name := d.name
	if d.kind != byAttr {
		name = dimensionNames[d.kind]
	}
	unknown, ip := !req.IP.IsValid(), "ip"
	if p := r.networks.or(rs.networks).of(req.IP); p.IsValid() && !p.IsSingleIP() {
		ip += " " + p.String()
	}
	if d.kind == byIP {
		if unknown {
			return ip + " (which is missing: all such requests count as one address)"
		}
		return ip
	}
	switch v := rs.value(r, d, req, m); {
	case v == "" && unknown:
		return "ip (" + name + " is missing, and so is ip: all such requests count as one address)"
	case v == "":
		return ip + " (" + name + " is missing)"
	case d.kind == byPath:
		return name + " (" + v + ")"
	}
	return name
}

// source says where the numbers of a rule come from for this request, in a word and in words.
func (r *rule) source(req *Request, tier string) (source, from string) {
	if _, ok := r.ByKey[req.APIKey]; ok {
		return "override", "the key's override"
	}
	if slices.ContainsFunc(r.Tiers, func(t Tier) bool { return t.Name == tier }) {
		return "rule_tier", "the rule's numbers for tier " + tier
	}
	if len(r.Limits) > 0 {
		return "rule", "the rule"
	}
	return "tier", "tier " + tier
}
