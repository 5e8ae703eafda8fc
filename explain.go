package weir

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirhq/weir/counter"
)

// Explanation says which rules apply to a request, and why the others don't.
type Explanation struct {
	// Reason is ReasonWithin, unless a list, the path or a missing identity decides before any counter is read.
	Reason Reason `json:"-"`
	// Pattern is the entry of the allow or deny list that decided, or "".
	Pattern string `json:"pattern,omitempty"`
	// Paths are the ways in which servers may read the request's path. A rule applies if it matches any of them.
	Paths []string `json:"paths,omitempty"`
	// Tier is the request's tier, and TierWhy says where the tier comes from.
	Tier    string `json:"tier,omitempty"`
	TierWhy string `json:"tier_why,omitempty"`
	// Ignored lists privileges that the request asked for but didn't get, and why.
	Ignored []string `json:"ignored,omitempty"`
	// Rules lists every rule, in the order of the file, unless a list decided or the path can't be read.
	Rules []RuleExplanation `json:"-"`
}

// RuleExplanation says how one rule treats a request.
type RuleExplanation struct {
	ID       string `json:"rule"`
	Applies  bool   `json:"applies"`
	Why      string `json:"why"`               // why the rule applies or doesn't
	Refuses  bool   `json:"refuses,omitempty"` // the rule refuses the request, since the request lacks what the rule counts by
	Endpoint string `json:"-"`                 // the endpoint in the rule's conditions, or ""
	// By lists what the request is counted by, such as "api_key", "ip 203.0.113.0/24" or "ip (api_key is missing)".
	By []string `json:"by,omitempty"`
	// SharedAddress: the client's address is unknown, so the request shares a counter with all such requests.
	SharedAddress bool `json:"shared_address,omitempty"`
	// Cost is how many tokens the request takes, or 0 if the rule counts an amount.
	Cost int64 `json:"cost,omitempty"`
	// Amount is the amount that the rule counts, or "" if it counts the cost. Charged is how much of the amount this request is
	// charged, and AmountFrom says where that number comes from.
	Amount     string         `json:"amount,omitempty"`
	Charged    counter.Amount `json:"charged,omitempty"`
	AmountFrom string         `json:"charged_from,omitempty"`
	// Limits are the limits for this request. From says where their numbers come from. Source says the same in one word:
	// override, rule, rule_tier (the rule's numbers for the request's tier) or tier.
	Limits []*counter.Policy `json:"-"`
	From   string            `json:"numbers_from,omitempty"`
	Source string            `json:"source,omitempty"`
	// Scope says where a Global rule is counted, and what happens while its home can't be reached. "" means in each region.
	Scope string `json:"scope,omitempty"`
}

// Explain reports how the rules match a request. It doesn't read counters.
func (rs *RuleSet) Explain(req *Request) Explanation {
	m := new(match)
	rs.run(req, m)
	if !rs.readsPaths && req.Path != "" {
		m.readings.Read(req.Path) // shown even if no rule depends on it
	}
	x := Explanation{Reason: m.reason, Pattern: m.pattern, Ignored: rs.ignored(req)}
	if m.pattern != "" || m.reason == ReasonUnreadablePath {
		return x
	}
	switch x.Tier, x.TierWhy = m.tier, m.tierWhy; {
	case x.Tier == "":
		x.TierWhy = "the rules have no tiers"
	case x.TierWhy == "":
		x.TierWhy = "the default tier"
	}
	x.Rules = make([]RuleExplanation, len(rs.rules))
	misses := make([]string, len(rs.rules))
	for i := 0; i == 0 || i < m.readings.Len(); i++ {
		rs.hold(req, m, i)
		if m.path != nil {
			x.Paths = append(x.Paths, m.pathText())
		}
		for j := range rs.rules {
			if x.Rules[j].Applies {
				continue
			}
			// If a rule applies to no reading of the path, prefer any other reason to a path that doesn't match.
			why := rs.whyNot(&rs.rules[j], req, m)
			if i == 0 || why == applies || misses[j] == wrongPath || misses[j] == wrongRegex {
				misses[j] = why
				x.Rules[j] = rs.explainRule(&rs.rules[j], req, m, why)
			}
		}
	}
	return x
}

// pathText returns the current reading of the path as text.
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

func (rs *RuleSet) explainRule(r *rule, req *Request, m *match, why string) RuleExplanation {
	x := RuleExplanation{ID: r.ID, Endpoint: r.Match.Endpoint, Amount: r.Amount}
	if why != applies {
		x.Why, x.Refuses = rs.fillIn(why, r, req, m), why == lacksRefuse
		return x
	}
	x.Applies, x.Why = true, r.conditions()
	if (r.template != "" || r.byPath) && m.readings.Len() > 1 {
		x.Why += ", where the path is read as " + m.pathText()
	}
	for _, d := range r.by {
		text, address := rs.countedBy(r, d, req, m)
		x.By = append(x.By, text)
		x.SharedAddress = x.SharedAddress || address && !req.IP.IsValid()
	}
	x.Limits = append(slices.Clone(r.numbers(req, m.tier)), r.Candidates...)
	x.Source, x.From = r.source(req, m.tier)
	if r.Split > 0 {
		x.From += fmt.Sprintf(", split into %d parts", r.Split)
	}
	x.Scope = r.scopeText()
	if r.Amount != "" {
		n, _ := rs.asked(r, req)
		x.Charged, x.AmountFrom = counter.Amount(n), rs.amountFrom(r, req)
		return x
	}
	for i, o := range m.owners {
		if o == r {
			x.Cost = m.charges[i].N
		}
	}
	return x
}

// amountFrom says where the amount that a request is charged comes from.
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

// lacksAmount says why a rule for an amount doesn't charge the request.
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

// These are more reasons why a rule doesn't apply, in addition to those of [RuleSet.check].
const (
	wrongPath   = "the path doesn't match endpoint {endpoint}"
	isForEnvoy  = "it is for Envoy's descriptor {descriptor} alone"
	outranked   = "rule {other} of layer {layer} is more specific"
	lacksSkip   = "the request lacks {lacks}, and the rule skips such requests"
	lacksRefuse = "the request lacks {lacks}, and the rule refuses such requests"
)

// whyNot returns why a rule doesn't apply, or the constant applies. It tests conditions in the same order as run.
func (rs *RuleSet) whyNot(r *rule, req *Request, m *match) string {
	switch {
	case r.Descriptor != nil:
		return isForEnvoy
	case slices.Contains(m.found, r.index):
	case r.endpoint != nil:
		return wrongPath
	case r.Match.EndpointRegex != "":
		return wrongRegex
	default:
		return wrongKey
	}
	if why := rs.check(r, req, m); why != applies {
		return why
	}
	lacks := len(rs.lacks(r, req, m)) > 0
	switch {
	case !slices.Contains(m.chosen, r):
		return outranked
	case lacks && r.Missing == MissingSkip:
		return lacksSkip
	case lacks && r.Missing == MissingRefuse:
		return lacksRefuse
	case r.Amount != "":
		if _, charged := rs.asked(r, req); !charged {
			return rs.lacksAmount(r, req)
		}
	}
	return applies
}

// fillIn replaces the placeholders in braces in a reason.
func (rs *RuleSet) fillIn(why string, r *rule, req *Request, m *match) string {
	other := ""
	for _, o := range m.chosen {
		if o.Layer == r.Layer {
			other = o.ID
		}
	}
	return strings.NewReplacer(
		"{endpoint}", r.Match.Endpoint, "{method}", req.Method, "{regex}", r.Match.EndpointRegex, "{pattern}", r.Match.APIKeyPattern,
		"{rule's tier}", r.Tier, "{tier}", m.tier, "{other}", other, "{layer}", r.Layer,
		"{descriptor}", "["+strings.Join(r.Descriptor, ", ")+"]", "{lacks}", strings.Join(rs.lacks(r, req, m), ", ")).Replace(why)
}

// lacks returns the names of the dimensions that the request has no value for.
func (rs *RuleSet) lacks(r *rule, req *Request, m *match) (names []string) {
	for _, d := range r.by {
		if d.kind != byIP && rs.value(r, d, req, m) == "" {
			names = append(names, d.name)
		}
	}
	return names
}

func (r *rule) conditions() string {
	var all []string
	add := func(given bool, text string) {
		if given {
			all = append(all, text)
		}
	}
	m := &r.Match
	add(m.Endpoint != "", "endpoint "+m.Endpoint)
	add(m.EndpointRegex != "", "endpoint_regex "+m.EndpointRegex)
	add(m.APIKeyPattern != "", "api_key_pattern "+m.APIKeyPattern)
	add(m.APIKeyPattern == "" && r.Tier != "", "tier "+r.Tier)
	add(m.NoKey, "no key")
	add(m.HasKey, "a key")
	if len(all) == 0 {
		return "it has no conditions"
	}
	return "it matches " + strings.Join(all, " and ")
}

// countedBy says what a request is counted by in one dimension, and whether that is its IP address.
func (rs *RuleSet) countedBy(r *rule, d dimension, req *Request, m *match) (text string, address bool) {
	if d.kind != byIP {
		switch v := rs.value(r, d, req, m); {
		case v != "" && d.kind == byPath:
			return d.name + " (" + v + ")", false
		case v != "":
			return d.name, false
		}
	}
	text = "ip"
	p := r.networks.or(rs.networks).of(req.IP)
	if p.IsValid() && !p.IsSingleIP() {
		text += " " + p.String()
	}
	const shared = ": all such requests count as one address)"
	switch {
	case d.kind == byIP && !p.IsValid():
		text += " (which is missing" + shared
	case d.kind == byIP:
	case !p.IsValid():
		text += " (" + d.name + " is missing, and so is ip" + shared
	default:
		text += " (" + d.name + " is missing)"
	}
	return text, true
}

// source says where the numbers for this request come from, in one word and in a phrase.
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

// scopeText says where a global rule is counted.
func (r *rule) scopeText() string {
	if !r.Global {
		return ""
	}
	home := "its home"
	if r.Home != "" {
		home += " " + r.Home
	}
	asks := "every check asks " + home + " in other regions"
	then := map[counter.FailureMode]string{FailAllow: "refused", FailRefuse: "refused", FailLocal: "counted in its own region, the whole limit in each,"}[r.OnPartition]
	travels := asks + ", and is " + then + " if there is no answer in time; Envoy's rate limit service waits for 15 ms if its caller sets no deadline"
	if r.Strict {
		return "global: " + travels
	}
	alone := map[counter.FailureMode]string{
		FailAllow:  fmt.Sprintf("goes on with the %d%% that are its own", r.Floor),
		FailRefuse: "refuses",
		FailLocal:  "counts the whole limit by itself",
	}[r.OnPartition]
	return fmt.Sprintf("global: each region decides by what it has of the limit, and borrows more of %s; one that is cut off %s. Of limits below 16 a region %s", home, alone, travels)
}
