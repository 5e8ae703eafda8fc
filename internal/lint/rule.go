package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
	"github.com/weirhq/weir/internal/private"
)

// document is a rule document that compiled, and what is noted about it.
type document struct {
	weir.Rules
	rules       []rule
	keys        pattern.Keys
	allow, deny pattern.List
	warnings    []counter.Problem
}

// rule is a rule as the search for mistakes looks at it.
type rule struct {
	*weir.Rule
	private.Policies
	index    int
	by       []string
	endpoint *pattern.Endpoint
	regex    pattern.Regex // of Match.EndpointRegex, if there is one
	cost     int64
}

// open prepares the document of a compiled set.
func open(set *weir.RuleSet) *document {
	d := &document{Rules: set.Rules()}
	if d.DefaultTier == "" && len(d.Tiers) > 0 {
		d.DefaultTier = d.Tiers[0].Name
	}
	for i, k := range d.Keys {
		d.keys.Add(k.Pattern, int32(i))
	}
	for _, entry := range d.Allow {
		_, _ = d.allow.Add(entry) // it compiled
	}
	for _, entry := range d.Deny {
		_, _ = d.deny.Add(entry)
	}
	d.rules = make([]rule, len(d.Rules.Rules))
	for i := range d.rules {
		r := &d.rules[i]
		r.Rule, r.Policies, r.index = &d.Rules.Rules[i], private.PoliciesOf(set, i), i
		r.by, r.cost = private.By(r.Rule), max(r.Cost, 1)
		if r.Match.Endpoint != "" {
			e, _ := pattern.ParseEndpoint(r.Match.Endpoint)
			r.endpoint = &e
		}
		if r.Match.EndpointRegex != "" {
			r.regex, _ = pattern.ParseRegex(r.Match.EndpointRegex)
		}
	}
	return d
}

// layers returns the rules of each layer in the order of the file, and the rank of each rule in its layer: lower goes first.
func (d *document) layers() (layers map[string][]*rule, ranks map[*rule]int) {
	layers, ranks = map[string][]*rule{}, map[*rule]int{}
	for i := range d.rules {
		if r := &d.rules[i]; r.Layer != "" {
			layers[r.Layer] = append(layers[r.Layer], r)
		}
	}
	for _, layer := range layers {
		endpoints := make([]*pattern.Endpoint, len(layer))
		for i, r := range layer {
			endpoints[i] = r.endpoint
		}
		for i, rank := range pattern.Ranks(endpoints) {
			ranks[layer[i]] = rank
		}
	}
	return layers, ranks
}

func (d *document) warnf(path, format string, args ...any) {
	d.warnings = append(d.warnings, counter.Problem{Path: path, Text: fmt.Sprintf(format, args...)})
}

func (r *rule) path() string { return fmt.Sprintf("rules[%d]", r.index) }

// countsBy reports whether the rule counts by one of the dimensions.
func (r *rule) countsBy(dimensions ...string) bool {
	return slices.ContainsFunc(r.by, func(d string) bool { return slices.Contains(dimensions, d) })
}

// countsByPath reports whether the rule counts by the beginning of the path.
func (r *rule) countsByPath() bool {
	return slices.ContainsFunc(r.by, func(d string) bool { return d == "path" || strings.HasPrefix(d, "path:") })
}

// isAttribute reports whether a dimension is a header, a claim or an attribute.
func isAttribute(dimension string) bool {
	kind, _, named := strings.Cut(dimension, ":")
	return named && kind != "path"
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

// slowestOf is the limit with the lowest rate.
func slowestOf(policies []*counter.Policy) *counter.Policy {
	return slices.MinFunc(policies, func(a, b *counter.Policy) int {
		switch x, y := slowest([]*counter.Policy{a}), slowest([]*counter.Policy{b}); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
}

// smallest is the least that the limits admit at once.
func smallest(policies []*counter.Policy) int64 {
	least := policies[0].Limit.Max()
	for _, p := range policies[1:] {
		least = min(least, p.Limit.Max())
	}
	return least
}
