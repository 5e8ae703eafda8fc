package weir

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
)

// warn notes what is allowed and probably a mistake. Each warning says what to do about it.
func (rs *RuleSet) warn() {
	rs.warnOfGaps()
	rs.warnOfTiers()
	rs.warnOfKeys()
	rs.warnOfLists()
	rs.warnOfOverrides()
	rs.warnOfLayers()
	rs.warnOfPaths()
	rs.warnOfAbuse()
	rs.warnOfSplits()
	rs.warnOfPrices()
	rs.warnOfScopes()
	rs.warnOfCounters()
	rs.warnOfAddresses()
}

// accurateCounter is the limit from which a sliding counter admits within 2% of the log.
const accurateCounter = 50

// warnOfCounters finds sliding counters that admit less than their limit, because one request is a large part of it.
func (rs *RuleSet) warnOfCounters() {
	for i := range rs.rules {
		r := &rs.rules[i]
		if r.Algorithm != SlidingCounter {
			continue
		}
		least := int64(accurateCounter)
		for _, policies := range append(slices.Collect(maps.Values(r.byTier)), r.base) {
			for _, p := range policies {
				least = min(least, p.Limit.Count/max(1, r.cost))
			}
		}
		if least < accurateCounter {
			loss := (100 + max(2, least) - 1) / max(2, least)
			rs.warnf(rulePath(r)+".algorithm", "a client that asks steadily for more than the limit gets up to %d%% less: the counter is exact to about one request, and %d of them fit; below %d write `algorithm: sliding_window_log`, which is exact", loss, max(1, least), accurateCounter)
		}
	}
}

// warnOfPrices finds prices that no model gets to, and rules that don't charge models without a price.
func (rs *RuleSet) warnOfPrices() (c pattern.Budget) {
	c = maxCompared
	all := len(rs.weights["usd"]) > 0 // of which usd is made where no price is
	for i, p := range rs.doc.Prices {
		all = all || strings.Trim(p.Name, "*") == ""
		for j := range i {
			o := &rs.doc.Prices[j]
			if !c.Spend(len(p.Name) + len(o.Name)) {
				rs.warnf("prices", "there are too many to hold them all against each other: those further down may come after one that matches the same models; write fewer")
				return c
			}
			// A pattern held against a pattern: its star is a character that only another star matches.
			if pattern.MatchGlob(o.Name, p.Name) {
				rs.warnf("prices."+p.Name, "no model gets here: %q stands before it, matches the same models, and the first match wins; move it up, or remove it", o.Name)
				break
			}
		}
	}
	if len(rs.doc.Prices) == 0 || all {
		return c
	}
	for i := range rs.rules {
		if r := &rs.rules[i]; r.Amount == "usd" && r.Default == 0 {
			rs.warnf("prices", "a request for a model without a price isn't charged by %q, unless it says itself how many usd it takes: add a price for \"*\" at the end, or give the rule a `default`", r.ID)
			return c
		}
	}
	return c
}

// warnOfAbuse finds an abuse that can't begin a cooldown.
func (rs *RuleSet) warnOfAbuse() {
	for i := range rs.rules {
		r := &rs.rules[i]
		if a := r.Abuse; a != nil && *a != (counter.Abuse{}) {
			if why := r.neverAbused(a); why != "" {
				rs.warnf(rulePath(r)+".abuse", "begins no cooldown: %s", why)
			}
		}
	}
	if a := rs.doc.Abuse; a != nil && *a != (counter.Abuse{}) && !slices.ContainsFunc(rs.rules, func(r rule) bool { return r.Abuse == nil && r.neverAbused(a) == "" }) {
		rs.warnf("abuse", "begins no cooldown: no rule that can refuse a client takes it; a rule's own `abuse` replaces it, and rules with `shadow` or `past_limit: book` refuse no client")
	}
}

// mostRefusals is more refusals per second than any client can cause.
const mostRefusals = 1_000_000

// neverAbused says why no client of the rule can begin a cooldown, or "".
func (r *rule) neverAbused(a *counter.Abuse) string {
	switch {
	case r.Shadow:
		return "the rule is in shadow, and refuses no client; leave out `abuse` until it isn't"
	case r.Book:
		return "`past_limit: book` refuses no client; leave out `abuse`, or `past_limit`"
	case a.DropAfter > 0 || r.Amount != "":
		return ""
	case float64(a.Refusals)/a.Window.Seconds() > mostRefusals:
		return fmt.Sprintf("no client is refused %d times in %s; write fewer `refusals`, such as 100/minute", a.Refusals, a.Window)
	}
	reachable := func(policies []*counter.Policy) bool {
		return len(policies) > 0 && slowest(policies)/float64(r.cost) <= mostRefusals
	}
	if reachable(r.base) {
		return ""
	}
	for _, policies := range r.byTier {
		if reachable(policies) {
			return ""
		}
	}
	return "only a client that sends more than twice what the limit admits begins one, and none sends so much; lower the limit, or leave out `abuse`"
}

func (rs *RuleSet) warnf(path, format string, args ...any) {
	rs.warnings = append(rs.warnings, counter.Problem{Path: path, Text: fmt.Sprintf(format, args...)})
}

func rulePath(r *rule) string { return fmt.Sprintf("rules[%d]", r.index) }

// addressHeaders are those in which proxies tell of a client's address, and clients what they like.
var addressHeaders = []string{"X-Forwarded-For", "X-Real-IP", "Forwarded", "CF-Connecting-IP", "True-Client-IP", "X-Client-IP"}

// warnOfGaps finds requests, and clients, that no rule limits.
func (rs *RuleSet) warnOfGaps() {
	catchAll, ipRule, identity := len(rs.rules) > 0, false, -1 // a document for Envoy's descriptors alone has no gaps
	for i := range rs.rules {
		catchAll = catchAll && rs.rules[i].Descriptor != nil
	}
	for i := range rs.rules {
		r := &rs.rules[i]
		if r.Descriptor != nil {
			continue
		}
		if r.Match.NoKey && r.Missing == MissingSkip && slices.Contains(r.by, dimension{kind: byAPIKey}) {
			rs.warnf(rulePath(r), "counts nothing: it is for requests without a key, and skips those; write `by: [ip]`")
		}
		if r.networks != (networks{}) && !slices.Contains(r.by, dimension{kind: byIP}) && (len(r.by) == 0 || r.Missing != MissingIP) {
			rs.warnf(rulePath(r), "`ipv4_prefix` and `ipv6_prefix` change nothing: the rule counts by no address; leave them out, or write `ip` in `by`")
		}
		for _, d := range r.by {
			for _, name := range addressHeaders {
				if strings.EqualFold(d.name, "header:"+name) {
					rs.warnf(rulePath(r), "counts by %s, in which a client can write another address for each request: write `by: [ip]`, and name your proxies in --trusted-proxies", name)
				}
			}
		}
		if r.Shadow {
			continue
		}
		unconditional := r.Match == Match{} && (r.Tier == "" || r.Match.APIKeyPattern != "") && r.Missing != MissingSkip
		catchAll = catchAll || unconditional
		switch {
		case slices.Contains(r.by, dimension{kind: byIP}):
			ipRule = true
		case identity < 0 && slices.ContainsFunc(r.by, func(d dimension) bool { return d.kind <= byOrg || d.kind == byAttr }):
			identity = i
		}
	}
	if !catchAll {
		rs.warnf("rules", "a request can match no rule at all and is then not limited: add a rule without `match`")
	}
	if identity >= 0 && !ipRule {
		rs.warnf(fmt.Sprintf("rules[%d]", identity), "no rule counts by ip behind it: a client that invents a new key for each request is not limited; add a rule with `by: [ip]`")
	}
}

// warnOfTiers finds numbers for a tier that nothing in the document leads to.
func (rs *RuleSet) warnOfTiers() {
	named := map[string]bool{rs.defaultTier: true}
	for _, k := range rs.doc.Keys {
		named[k.Tier] = true
	}
	for i := range rs.rules {
		named[rs.rules[i].Tier] = true
		for _, t := range rs.rules[i].Tiers {
			named[t.Name] = true
		}
	}
	for _, t := range rs.doc.Tiers {
		if !named[t.Name] {
			rs.warnf("tiers."+t.Name, "nobody is in this tier, unless requests carry it: no key leads to it and no rule names it; add a pattern for it under `keys`, or remove it")
		}
	}
}

// maxCompared bounds how much each search for mistakes looks at, in bytes of patterns and paths: all against all would
// let a document of a few megabytes occupy a node for minutes. It is enough for thousands of rules, and some
// tenths of a second.
const maxCompared = 1 << 26

// warnOfKeys finds patterns that come after one which matches all that they match.
func (rs *RuleSet) warnOfKeys() (c pattern.Budget) {
	c = maxCompared
	for i, k := range rs.doc.Keys {
		// A pattern held against a pattern: its star is a character that only another star matches.
		first := rs.keys.FirstWithin(k.Pattern, int32(i), &c)
		if c < 0 {
			rs.warnf("keys", "there are too many patterns to hold them all against each other: those further down may come after one that matches the same keys; write fewer with an asterisk before their end")
			return c
		}
		if first >= 0 && rs.doc.Keys[first].Tier != k.Tier {
			rs.warnf("keys."+k.Pattern, "no key gets here: %q stands before it, matches the same keys, and the first match wins; move it up, or remove it", rs.doc.Keys[first].Pattern)
		}
	}
	return c
}

// warnOfLists finds rules and overrides for keys that the lists decide about.
func (rs *RuleSet) warnOfLists() (c pattern.Budget) {
	c = maxCompared
	for i := range rs.rules {
		r := &rs.rules[i]
		if p := r.Match.APIKeyPattern; p != "" {
			path := rulePath(r) + ".match.api_key_pattern"
			if by := rs.deny.MatchWithin(p, &c); by != "" {
				rs.warnf(path, "the rule applies to nobody: %q on the deny list refuses these keys first; remove one of them", by)
			} else if by := rs.allow.MatchWithin(p, &c); by != "" {
				rs.warnf(path, "the rule applies to no verified key: %q on the allow list lets these keys bypass every rule; remove one of them", by)
			}
		}
		if !rs.deny.Empty() {
			for _, key := range slices.Sorted(maps.Keys(r.Override)) {
				if by := rs.deny.MatchWithin(key, &c); by != "" {
					rs.warnf(rulePath(r)+".override."+key, "changes nothing: %q on the deny list refuses this key; remove one of them", by)
				}
			}
		}
		if c < 0 {
			rs.warnf("rules", "there are too many patterns on the deny list and the allow list to hold every rule against them: those further down may be for keys that the lists decide about; write fewer with an asterisk before their end")
			return c
		}
	}
	return c
}

// warnOfOverrides finds overrides for keys that their rule isn't for, and those whose name is meant for something other than a key.
func (rs *RuleSet) warnOfOverrides() (c pattern.Budget) {
	c = maxCompared
	for i := range rs.rules {
		r := &rs.rules[i]
		for _, key := range slices.Sorted(maps.Keys(r.Override)) {
			if !c.Spend(len(key) + len(r.Match.APIKeyPattern)) {
				rs.warnf("rules", "there are too many overrides to hold them all against their rules: those further down may never apply; write fewer, or shorter patterns")
				return c
			}
			kind, _, _ := strings.Cut(key, ":")
			why := ""
			switch of := r.Match.APIKeyPattern; {
			case r.Match.NoKey:
				why = "the rule is for requests without a key; remove it, or write it in a rule for this key"
			case of != "" && !pattern.MatchGlob(of, key):
				why = fmt.Sprintf("the rule is for keys that match %q, and this one doesn't; write it in a rule for this key", of)
			case slices.Contains([]string{"org", "user", "ip", "tier"}, kind) && kind != key:
				why = fmt.Sprintf("an override names an API key, and this looks like the name of something else (%s); give those requests a tier, and the rule `tiers`", kind)
			default:
				continue
			}
			rs.warnf(rulePath(r)+".override."+key, "never applies: %s", why)
		}
	}
	return c
}

// warnOfLayers finds rules of a layer that another one always precedes, and rules that give more to
// a client that invents the right key.
func (rs *RuleSet) warnOfLayers() (c pattern.Budget) {
	c = maxCompared
	layers := rs.layers()
	sizes := map[string]int{} // of all rules of a layer
	for name, layer := range layers {
		for _, r := range layer {
			sizes[name] += r.size()
		}
	}
	for i := range rs.rules {
		r := &rs.rules[i]
		layer := layers[r.Layer]
		if !c.Spend(len(layer)*r.size() + sizes[r.Layer]) {
			rs.warnf("rules", "too many rules share a layer to hold them all against each other: those further down may never apply; give them more layers")
			return c
		}
		if over := slices.IndexFunc(layer, func(o *rule) bool { return o.rank < r.rank && o.covers(r) }); over >= 0 {
			o := layer[over]
			advice := "move it before that one, narrow that one's `match`, or give them different layers"
			if o.endpoint != nil && r.endpoint != nil && o.endpoint.MoreSpecific(r.endpoint) {
				advice = "narrow that one's `match`, or give them different layers"
			}
			rs.warnf(rulePath(r), "never applies: %q goes before it in the layer %q and matches whatever it matches; %s", o.ID, r.Layer, advice)
			continue
		}
		if strings.Contains(r.Match.APIKeyPattern, "*") {
			rs.warnOfPrivilege(r, layer)
		}
	}
	return c
}

// warnOfPrivilege finds rules by which a request escapes a lower limit with an unverified key.
func (rs *RuleSet) warnOfPrivilege(r *rule, layer []*rule) {
	unkeyed := *r.Rule
	unkeyed.Match.APIKeyPattern, unkeyed.Tier = "", ""
	without := *r
	without.Rule = &unkeyed
	for _, o := range layer {
		if o.rank > r.rank && o.Match.APIKeyPattern == "" && o.covers(&without) && len(o.base) > 0 && o.Amount == r.Amount && (o.Algorithm == Concurrency) == (r.Algorithm == Concurrency) && slowest(o.base) < slowest(r.base) {
			rs.warnf(rulePath(r)+".match.api_key_pattern", "a client that invents such a key gets %s in place of %q's %s, since `match` takes keys that nobody has verified; put the pattern under `keys`, with a tier",
				r.base[0].Limit, o.ID, o.base[0].Limit)
			return
		}
	}
}

// warnOfPaths finds rules that count by endpoint where there is only one, and rules whose limit a client
// escapes by making up paths.
func (rs *RuleSet) warnOfPaths() (c pattern.Budget) {
	c = maxCompared
	named, size := false, 0
	for i := range rs.rules {
		named = named || rs.rules[i].endpoint != nil
		size += rs.rules[i].size()
	}
	for i := range rs.rules {
		r := &rs.rules[i]
		if slices.Contains(r.by, dimension{kind: byEndpoint}) {
			const advice = "`endpoint` in `by` changes nothing: %s; leave it out, or write `path` to count each path by itself"
			if r.template != "" {
				rs.warnf(rulePath(r)+".by", advice, "it stands for the rule's own `match`, which is the same for all of its requests")
			} else if !named {
				rs.warnf(rulePath(r)+".by", advice, "it stands for the endpoints of rules, and no rule has one")
			}
		}
		if !r.byPath || r.Shadow {
			continue
		}
		if !c.Spend(len(rs.rules)*r.size() + size) {
			rs.warnf("rules", "too many rules count by path to hold them all against the others: those further down may not limit a client that makes up paths; add a rule without `match` and without `path`")
			return c
		}
		behind := false
		for j := 0; j < len(rs.rules) && !behind; j++ {
			o := &rs.rules[j]
			behind = !o.byPath && (o.Layer == "" || o.Layer != r.Layer) && o.limitsAll(r)
		}
		if !behind {
			rs.warnf(rulePath(r)+".by", "no rule without `path` stands behind it: a client that makes up a path for each request is not limited; add one, with what it may take of all paths together")
		}
	}
	return c
}

// slowest is the lowest of the limits' rates, in tokens per second.
func slowest(policies []*counter.Policy) float64 {
	lowest := 0.0
	for _, p := range policies {
		rate := p.Limit.Refill
		if rate == 0 {
			rate = float64(p.Limit.Amount()) / 1e6 / p.Limit.Window.Seconds()
		}
		if lowest == 0 || rate < lowest {
			lowest = rate
		}
	}
	return lowest
}

// covers: the rule applies to every request that another one applies to, as far as can be told from their words.
func (r *rule) covers(o *rule) bool {
	if r == o || !slices.Equal(r.Descriptor, o.Descriptor) || r.endpoint != nil && (o.endpoint == nil || !o.endpoint.Within(r.endpoint)) {
		return false
	}
	if o.endpoint != nil && o.endpoint.Method == "OPTIONS" && (r.endpoint == nil || r.endpoint.Method != "OPTIONS") {
		return false // which preflights are exempt from
	}
	a, b := &r.Match, &o.Match
	switch {
	case a.EndpointRegex != "" && a.EndpointRegex != b.EndpointRegex:
	case a.APIKeyPattern != "" && (b.APIKeyPattern == "" || !pattern.MatchGlob(a.APIKeyPattern, b.APIKeyPattern)):
	case a.NoKey && !b.NoKey:
	case a.HasKey && !b.HasKey && (b.APIKeyPattern == "" || pattern.MatchGlob(b.APIKeyPattern, "")):
	case r.tierCondition() != "" && r.tierCondition() != o.tierCondition():
	default:
		return true
	}
	return false
}

// tierCondition is the tier that the rule is for, if that isn't just a label.
func (r *rule) tierCondition() string {
	if r.Match.APIKeyPattern != "" {
		return ""
	}
	return r.Tier
}

// size is about how many bytes of the rule [rule.covers] looks at.
func (r *rule) size() int {
	n := 8 + len(r.Match.APIKeyPattern) + len(r.Match.EndpointRegex)/8
	if r.endpoint != nil {
		n += 4*len(r.endpoint.Segs) + len(r.Match.Endpoint)/8
	}
	return n
}

// Moved is a pattern of keys whose keys have come from one tier into another.
type Moved struct{ Pattern, From, To string }

// Moved returns the patterns of an older set whose verified keys are in another tier now, as far as can be told from the
// patterns. If there are very many patterns, it looks only at the first ones.
func (rs *RuleSet) Moved(old *RuleSet) (moved []Moved) {
	c := pattern.Budget(maxCompared)
	for i, k := range old.doc.Keys {
		// A pattern held against a pattern: its star is a character that only another star matches.
		if old.keys.FirstWithin(k.Pattern, int32(i), &c) >= 0 {
			continue // an earlier pattern matches all keys of this one
		}
		to := rs.defaultTier
		if j := rs.keys.FirstWithin(k.Pattern, int32(len(rs.doc.Keys)), &c); j >= 0 {
			to = rs.doc.Keys[j].Tier
		}
		if c < 0 {
			break
		}
		if to != k.Tier {
			moved = append(moved, Moved{k.Pattern, k.Tier, to})
		}
	}
	return moved
}

// Dropped returns, by their numbers, the rules of an older set that limited
// requests which no rule of this one limits, as far as can be told from their
// conditions. Of those that were for the same requests, it is the widest. All is
// false if there were too many rules to look at every one.
func (rs *RuleSet) Dropped(old *RuleSet) (rules []int, all bool) {
	dropped, c := rs.dropped(old)
	return dropped, c >= 0
}

func (rs *RuleSet) dropped(old *RuleSet) (widest []int, c pattern.Budget) {
	c = maxCompared
	// Most rules are still there, or stand before one without conditions: those are tried first.
	byID, wide, size := make(map[string]*rule, len(rs.rules)), []*rule{}, 0
	for i := range rs.rules {
		r := &rs.rules[i]
		byID[r.ID] = r
		if size += r.size(); r.Match == (Match{}) {
			wide = append(wide, r)
		}
	}
	var dropped []int
	for i := range old.rules {
		r := &old.rules[i]
		kept := r.Shadow || r.borrows() || byID[r.ID] != nil && byID[r.ID].limitsAll(r)
		for j := 0; j < len(wide) && !kept && c.Spend(wide[j].size()+r.size()); j++ {
			kept = wide[j].limitsAll(r)
		}
		if kept {
			continue
		}
		if !c.Spend(len(rs.rules)*r.size() + size) {
			break
		}
		for j := 0; j < len(rs.rules) && !kept; j++ {
			kept = rs.rules[j].limitsAll(r)
		}
		if !kept {
			dropped = append(dropped, i)
		}
	}
	for n, i := range dropped {
		r := &old.rules[i]
		if !c.Spend(len(dropped) * 2 * r.size()) {
			return append(widest, dropped[n:]...), c
		}
		if !slices.ContainsFunc(dropped, func(j int) bool {
			o := &old.rules[j]
			return o.limitsAll(r) && (j < i || !r.limitsAll(o))
		}) {
			widest = append(widest, i)
		}
	}
	return widest, c
}

// limitsAll: the rule limits whatever another one limits. One that counts an amount doesn't limit requests without it.
func (r *rule) limitsAll(o *rule) bool {
	if r.Amount != "" && r.Default == 0 && (r.Amount != o.Amount || o.Default > 0) {
		return false
	}
	return !r.Shadow && r.covers(o) && (r.Missing != MissingSkip || o.Missing == MissingSkip && slices.Equal(r.by, o.by))
}
