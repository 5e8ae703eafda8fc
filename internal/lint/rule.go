package lint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
	"github.com/weirhq/weir/internal/private"
)

// document is a compiled rule document, with the warnings about it.
type document struct {
	weir.Rules
	rules       []*rule
	keys        pattern.Keys
	allow, deny pattern.List
	warnings    []counter.Problem
	// budget is how many more bytes the current search may look at.
	budget pattern.Budget
}

// rule is a rule with its patterns parsed, for the searches.
type rule struct {
	*weir.Rule
	private.Policies
	index    int
	by       []string
	endpoint *pattern.Endpoint
	regex    pattern.Regex // parsed Match.EndpointRegex, if that is set
	cost     int64
	keys     []string // the keys of overrides, sorted
}

// open prepares the document of a compiled rule set.
func open(set *weir.RuleSet) *document {
	d := &document{Rules: set.Rules(), budget: maxCompared}
	if d.DefaultTier == "" && len(d.Tiers) > 0 {
		d.DefaultTier = d.Tiers[0].Name
	}
	for i, k := range d.Keys {
		d.keys.Add(k.Pattern, int32(i))
	}
	for _, entry := range d.Allow {
		_, _ = d.allow.Add(entry) // no error: the document has compiled
	}
	for _, entry := range d.Deny {
		_, _ = d.deny.Add(entry)
	}
	for i := range d.Rules.Rules {
		r := &rule{Rule: &d.Rules.Rules[i], Policies: private.PoliciesOf(set, i), index: i}
		r.by, r.cost, r.keys = private.By(r.Rule), max(r.Cost, 1), slices.Sorted(maps.Keys(r.Override))
		if r.Match.Endpoint != "" {
			e, _ := pattern.ParseEndpoint(r.Match.Endpoint)
			r.endpoint = &e
		}
		if r.Match.EndpointRegex != "" {
			r.regex, _ = pattern.ParseRegex(r.Match.EndpointRegex)
		}
		d.rules = append(d.rules, r)
	}
	return d
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

// covers reports whether the rule applies to every request that rule o applies to. It compares only their conditions.
func (r *rule) covers(o *rule) bool {
	if r == o || !slices.Equal(r.Descriptor, o.Descriptor) || r.endpoint != nil && (o.endpoint == nil || !o.endpoint.Within(r.endpoint)) {
		return false
	}
	if o.endpoint != nil && o.endpoint.Method == "OPTIONS" && (r.endpoint == nil || r.endpoint.Method != "OPTIONS") {
		return false // rules exempt preflights unless their endpoint has the method OPTIONS
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

// tierCondition returns the tier that a request must have for the rule to apply, or "" for any. It returns "" for a
// rule with a key pattern, whose tier is only a label.
func (r *rule) tierCondition() string {
	if r.Match.APIKeyPattern != "" {
		return ""
	}
	return r.Tier
}

// size estimates how many bytes [rule.covers] looks at in the rule.
func (r *rule) size() int {
	n := 8 + len(r.Match.APIKeyPattern) + len(r.Match.EndpointRegex)/8
	if r.endpoint != nil {
		n += 4*len(r.endpoint.Segs) + len(r.Match.Endpoint)/8
	}
	return n
}

// PerSecond returns how much a limit admits per second. For a concurrency limit, it returns the number of slots, which
// can be compared only with another concurrency limit.
func PerSecond(l weir.Limit) float64 {
	switch {
	case l.Refill > 0:
		return l.Refill
	case l.Algorithm == weir.Concurrency:
		return float64(l.Count)
	}
	return float64(l.Amount()) / float64(counter.Whole(1)) / l.Window.Seconds()
}

// slowest returns the limit with the lowest rate.
func slowest(policies []*counter.Policy) weir.Limit {
	return slices.MinFunc(policies, func(a, b *counter.Policy) int { return cmp.Compare(PerSecond(a.Limit), PerSecond(b.Limit)) }).Limit
}

// smallest returns the limit that admits the least at once.
func smallest(policies []*counter.Policy) weir.Limit {
	return slices.MinFunc(policies, func(a, b *counter.Policy) int { return cmp.Compare(a.Limit.Max(), b.Limit.Max()) }).Limit
}
