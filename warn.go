package weir

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// warn notes what is allowed and probably not meant. Each says what to do about it.
func (rs *RuleSet) warn() {
	rs.warnOfGaps()
	rs.warnOfTiers()
	rs.warnOfKeys()
	rs.warnOfLists()
	rs.warnOfLayers()
}

func (rs *RuleSet) warnf(path, format string, args ...any) {
	rs.warnings = append(rs.warnings, Problem{path, fmt.Sprintf(format, args...)})
}

func rulePath(r *rule) string { return fmt.Sprintf("rules[%d]", r.index) }

// warnOfGaps: requests, and clients, that no rule limits.
func (rs *RuleSet) warnOfGaps() {
	catchAll, ipRule, identity := false, false, -1
	for i := range rs.rules {
		r := &rs.rules[i]
		if r.Match.APIKey == Absent && r.Missing == MissingSkip && slices.Contains(r.by, dimension{kind: byAPIKey}) {
			rs.warnf(rulePath(r), "counts nothing: it is for requests without a key, and skips those; write `by: [ip]`")
		}
		if r.Shadow {
			continue
		}
		unconditional := r.Match == Match{} && (r.Tier == "" || r.Match.APIKeyPattern != "") && r.Missing != MissingSkip
		catchAll = catchAll || unconditional
		switch {
		case slices.Contains(r.by, dimension{kind: byIP}):
			ipRule = true
		case len(r.by) > 0 && identity < 0:
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

// warnOfTiers: numbers for a tier that nothing in the document leads to.
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

// maxGlobs is how many patterns with a star in their midst are held against each other.
const maxGlobs = 1000

// warnOfKeys: patterns that come after one which matches all that they do.
func (rs *RuleSet) warnOfKeys() {
	if len(rs.keys.globs) > maxGlobs {
		return
	}
	for i, k := range rs.doc.Keys {
		// A pattern held against a pattern: its star is a character that only another star matches.
		first := rs.keys.first(k.Pattern)
		if first >= 0 && int(first) < i && rs.doc.Keys[first].Tier != k.Tier {
			rs.warnf("keys."+k.Pattern, "no key gets here: %q stands before it, matches the same keys, and the first match wins; move it up, or remove it", rs.doc.Keys[first].Pattern)
		}
	}
}

// warnOfLists: rules and overrides for keys that the lists decide about.
func (rs *RuleSet) warnOfLists() {
	if len(rs.allow.patterns)+len(rs.deny.patterns) == 0 || len(rs.allow.keys.globs)+len(rs.deny.keys.globs) > maxGlobs {
		return
	}
	for i := range rs.rules {
		r := &rs.rules[i]
		if p := r.Match.APIKeyPattern; p != "" {
			path := rulePath(r) + ".match.api_key_pattern"
			if by := rs.deny.matchKey(p); by != "" {
				rs.warnf(path, "the rule applies to nobody: %q in the blacklist refuses these keys before; remove one of them", by)
			} else if by := rs.allow.matchKey(p); by != "" {
				rs.warnf(path, "the rule applies to no verified key: %q in the whitelist lets these keys bypass every rule; remove one of them", by)
			}
		}
		if len(rs.deny.patterns) == 0 {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(r.Override)) {
			if by := rs.deny.matchKey(key); by != "" {
				rs.warnf(rulePath(r)+".override."+key, "changes nothing: %q in the blacklist refuses this key; remove one of them", by)
			}
		}
	}
}

// warnOfLayers: rules of a layer that another one always goes before, and such
// that give more to whoever invents the right key.
func (rs *RuleSet) warnOfLayers() {
	layers := map[string][]*rule{}
	for i := range rs.rules {
		if r := &rs.rules[i]; r.Layer != "" {
			layers[r.Layer] = append(layers[r.Layer], r)
		}
	}
	for i := range rs.rules {
		r := &rs.rules[i]
		layer := layers[r.Layer]
		if over := slices.IndexFunc(layer, func(o *rule) bool { return o.rank < r.rank && o.covers(r) }); over >= 0 {
			o := layer[over]
			advice := "move it before that one, narrow that one's `match`, or give them different layers"
			if o.endpoint != nil && r.endpoint != nil && o.endpoint.moreSpecific(r.endpoint) {
				advice = "narrow that one's `match`, or give them different layers"
			}
			rs.warnf(rulePath(r), "never applies: %q goes before it in the layer %q and matches whatever it matches; %s", o.ID, r.Layer, advice)
			continue
		}
		if strings.Contains(r.Match.APIKeyPattern, "*") {
			rs.warnOfPrivilege(r, layer)
		}
	}
}

// warnOfPrivilege: a request gets out of a lower limit by a key that nobody has verified.
func (rs *RuleSet) warnOfPrivilege(r *rule, layer []*rule) {
	unkeyed := *r.Rule
	unkeyed.Match.APIKeyPattern, unkeyed.Tier = "", ""
	without := *r
	without.Rule = &unkeyed
	for _, o := range layer {
		if o.rank > r.rank && o.Match.APIKeyPattern == "" && o.covers(&without) && len(o.base) > 0 && slowest(o.base) < slowest(r.base) {
			rs.warnf(rulePath(r)+".match.api_key_pattern", "a client that invents such a key gets %s in place of %q's %s, since `match` takes keys that nobody has verified; put the pattern under `keys`, with a tier",
				r.base[0].Limit, o.ID, o.base[0].Limit)
			return
		}
	}
}

// slowest is the lowest of the limits' rates, in tokens per second.
func slowest(policies []*Policy) float64 {
	lowest := 0.0
	for _, p := range policies {
		rate := p.Limit.Refill
		if rate == 0 {
			rate = float64(p.Limit.Count) / p.Limit.Window.Seconds()
		}
		if lowest == 0 || rate < lowest {
			lowest = rate
		}
	}
	return lowest
}

// covers: the rule applies to every request that another one applies to, as far as can be told from their words.
func (r *rule) covers(o *rule) bool {
	if r == o || r.endpoint != nil && (o.endpoint == nil || !o.endpoint.within(r.endpoint)) {
		return false
	}
	if o.endpoint != nil && o.endpoint.method == "OPTIONS" && (r.endpoint == nil || r.endpoint.method != "OPTIONS") {
		return false // which preflights are exempt from
	}
	a, b := &r.Match, &o.Match
	switch {
	case a.EndpointRegex != "" && a.EndpointRegex != b.EndpointRegex:
	case a.APIKeyPattern != "" && (b.APIKeyPattern == "" || !matchGlob(a.APIKeyPattern, b.APIKeyPattern)):
	case a.APIKey != Either && a.APIKey != b.APIKey && !(a.APIKey == Present && b.APIKeyPattern != "" && !matchGlob(b.APIKeyPattern, "")):
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

// Dropped returns, by their numbers, the rules of an older set that limited
// requests which no rule of this one limits, as far as can be told from their
// conditions. Of those that were for the same requests, it is the widest.
func (rs *RuleSet) Dropped(old *RuleSet) []int {
	var dropped []int
	for i := range old.rules {
		r := &old.rules[i]
		kept := r.Shadow
		for j := 0; j < len(rs.rules) && !kept; j++ {
			kept = rs.rules[j].limitsAll(r)
		}
		if !kept {
			dropped = append(dropped, i)
		}
	}
	widest := make([]int, 0, len(dropped))
	for _, i := range dropped {
		r := &old.rules[i]
		if !slices.ContainsFunc(dropped, func(j int) bool {
			o := &old.rules[j]
			return o.limitsAll(r) && (j < i || !r.limitsAll(o))
		}) {
			widest = append(widest, i)
		}
	}
	return widest
}

// limitsAll: the rule limits whatever another one limits.
func (r *rule) limitsAll(o *rule) bool {
	return !r.Shadow && r.covers(o) && (r.Missing != MissingSkip || o.Missing == MissingSkip && slices.Equal(r.by, o.by))
}
