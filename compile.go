package weir

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
	"github.com/weirhq/weir/internal/private/link"
)

// RuleSet is a compiled rule document: immutable, and safe to share.
type RuleSet struct {
	doc         Rules
	rules       []rule
	attributes  []string
	methods     []string // methods that endpoints name
	allow, deny pattern.List
	keys        pattern.Keys
	tiers       map[string]bool // every tier that the document names
	defaultTier string

	// Each rule is in one of these four fields, according to the condition that is cheapest to look up.
	endpoints pattern.Endpoints
	regexes   pattern.Prefixes
	byKey     pattern.Keys
	always    []int32

	readsPaths  bool // some rule depends on the path
	limitsPaths bool // some rule that isn't in shadow depends on the path
	abuse       bool // some rule has an Abuse
	slots       bool // some rule counts requests in flight
	weights     map[string][]Weight
	networks    networks
}

// rule is a compiled Rule.
type rule struct {
	*Rule
	link.Policies
	index    int32
	by       []dimension
	endpoint *pattern.Endpoint
	regex    pattern.Regex // compiled from Match.EndpointRegex, if there is one
	template string        // the value of the dimension endpoint, if the rule has an endpoint
	rank     int           // its rank in its layer; lower is more specific
	cost     int64
	networks networks // 0 means the same as in the rule set

	endpointOnly bool // the endpoint is its only condition
	keyOnly      bool // it counts by API key alone
	byPath       bool // it counts by path
	invented     bool // clients can invent subjects; if byPath, verified clients can, too
	returnable   bool // its charges may be given back, even without a receipt
}

// Compile checks and compiles a document. The error is a [counter.Problems] that lists everything that is wrong.
func Compile(doc Rules) (*RuleSet, error) {
	rs := &RuleSet{doc: doc, defaultTier: doc.DefaultTier, networks: usualNetworks}
	rs.tiers, rs.weights = map[string]bool{}, map[string][]Weight{}
	rs.doc.Rules = slices.Clone(doc.Rules)
	var bad problems
	rs.compileTiers(&bad)
	rs.compilePrices(&bad)
	checkAbuse(doc.Abuse, "abuse", &bad)
	rs.rules = make([]rule, len(rs.doc.Rules))
	ids, descriptors := map[string]int{}, map[string]int{}
	for i := range rs.doc.Rules {
		r := &rs.rules[i]
		r.Rule, r.index = &rs.doc.Rules[i], int32(i)
		path := fmt.Sprintf("rules[%d]", i)
		r.compileID(path+".id", ids, &bad)
		if r.Descriptor != nil {
			r.compileDescriptor(path, descriptors, &bad)
		} else {
			rs.compileRule(r, path, &bad)
		}
	}
	rs.checkCounters(&bad)
	rs.allow = compileList("allow", doc.Allow, "none of them would be limited", &bad)
	rs.deny = denyList(doc.Deny, &bad)
	if len(bad) > 0 {
		return nil, counter.Problems(bad)
	}
	rs.rankLayers()
	rs.index()
	return rs, nil
}

// Version returns the document's version.
func (rs *RuleSet) Version() int64 { return rs.doc.Version }

// policiesOf returns the policies of the rule with this index.
func (rs *RuleSet) policiesOf(rule int) link.Policies { return rs.rules[rule].Policies }

// withVersion returns the same rules with another version number.
func (rs *RuleSet) withVersion(version int64) *RuleSet {
	c := *rs
	c.doc.Version = version
	return &c
}

// Rules returns the document. The caller must not change it.
func (rs *RuleSet) Rules() Rules { return rs.doc }

func (rs *RuleSet) compileTiers(bad *problems) {
	for i, t := range rs.doc.Tiers {
		path := "tiers." + t.Name
		bad.when(t.Name == "", fmt.Sprintf("tiers[%d]", i), "a tier needs a name")
		bad.when(rs.tiers[t.Name], path, "the tier is listed twice")
		bad.when(len(t.Limits) == 0, path, needsLimit)
		rs.tiers[t.Name] = true
		for j, l := range t.Limits {
			// Rules decide the algorithm, and whether limits count amounts. But a month is always a fixed window, and a limit
			// with a fraction always counts an amount.
			if l.Decimal = l.Fraction != 0; l.Calendar.Unit != counter.NoUnit {
				l.Algorithm = FixedWindow
			}
			bad.addErr(limitPath(path, j, len(t.Limits)), l.Validate())
		}
	}
	if rs.defaultTier == "" && len(rs.doc.Tiers) > 0 {
		rs.defaultTier = rs.doc.Tiers[0].Name
	}
	if rs.defaultTier != "" {
		rs.checkTier("default_tier", rs.defaultTier, bad)
	}
	for _, r := range rs.doc.Rules {
		for _, t := range r.Tiers {
			rs.tiers[t.Name] = true
		}
	}
	for i, k := range rs.doc.Keys {
		bad.when(k.Pattern == "", fmt.Sprintf("keys[%d]", i), "must be a key or a pattern such as sk_prod_*, got nothing")
		rs.checkTier("keys."+k.Pattern, k.Tier, bad)
		rs.keys.Add(k.Pattern, int32(i))
	}
}

const needsLimit = `needs a limit such as "100/minute"`

// checkTier reports a tier that doesn't exist. It sorts the names of tiers only if it must, since documents may have many keys.
func (rs *RuleSet) checkTier(path, name string, bad *problems) {
	if rs.tiers[name] {
		return
	}
	advice := "no tiers are listed"
	if len(rs.tiers) > 0 {
		advice = "write one of " + strings.Join(slices.Sorted(maps.Keys(rs.tiers)), ", ")
	}
	bad.when(true, path, "there is no tier %q: %s", name, advice)
}

func limitPath(path string, i, n int) string {
	if n > 1 {
		return fmt.Sprintf("%s.limits[%d]", path, i)
	}
	return path
}

func (r *rule) compileID(path string, ids map[string]int, bad *problems) {
	id := strings.ToLower(r.ID)
	first, twice := ids[id]
	bad.when(id == "", path, "a rule needs an id, which clients see when it refuses them")
	bad.when(len(id) > 64, path, "must be at most 64 characters, got %d", len(id))
	bad.when(strings.Trim(id, nameLetters+"-") != "", path, "must be of a-z, 0-9, _ and - only, got %q", r.ID)
	bad.when(twice && id != "", path, "%q is the id of rules[%d], too: ids must differ", id, first)
	if !twice {
		ids[id] = int(r.index)
	}
	r.ID = id
}

func (rs *RuleSet) compileRule(r *rule, path string, bad *problems) {
	r.validate(path, bad)
	r.compileMatch(path+".match", bad)
	if r.Tier != "" && r.Match.APIKeyPattern == "" {
		rs.checkTier(path+".tier", r.Tier, bad)
	}
	by := r.dimensions()
	for i, name := range by {
		d, err := parseDimension(name)
		bad.addErr(fmt.Sprintf("%s.by[%d]", path, i), err)
		bad.when(err == nil && slices.Contains(r.by, d), fmt.Sprintf("%s.by[%d]", path, i), "%s is listed twice", name)
		r.by = append(r.by, d)
		if d.kind == byAttr && !slices.Contains(rs.attributes, name) {
			rs.attributes = append(rs.attributes, name)
		}
	}
	r.networks = networks{uint8(r.IPv4Prefix), uint8(r.IPv6Prefix)}
	r.cost = max(r.Cost, 1)
	checkAbuse(r.Abuse, path+".abuse", bad)
	rs.compileNumbers(r, path, strings.Join(by, ","), bad)
}

func (r *rule) compileMatch(path string, bad *problems) {
	m := &r.Match
	r.template = cmp.Or(m.Endpoint, m.EndpointRegex)
	if m.Endpoint != "" {
		e, err := pattern.ParseEndpoint(m.Endpoint)
		bad.addErr(path+".endpoint", err)
		r.endpoint = &e
	}
	if m.EndpointRegex != "" {
		var err error
		r.regex, err = pattern.ParseRegex(m.EndpointRegex)
		bad.addErr(path+".endpoint_regex", err)
	}
	bad.when(m.NoKey && m.HasKey, path+".api_key", "no request has a key and has none: leave one of them out")
	bad.when(m.NoKey && m.APIKeyPattern != "", path+".api_key",
		"a request without a key can't match api_key_pattern %q: leave one of them out", m.APIKeyPattern)
}

// checkCounters reports two limits that could apply to the same request and would share a counter by accident. If a rule has
// several limits, their names include their windows: "api" over a second and a month has api-1s and api-month, and another rule
// may have such an id. Only the numbers of one rule, its tiers and its overrides share a counter on purpose, as alternatives.
func (rs *RuleSet) checkCounters(bad *problems) {
	type owner struct {
		rule      int32
		candidate bool
	}
	owners := map[uint64]owner{}
	for i := range rs.rules {
		r := &rs.rules[i]
		for _, p := range r.All() {
			me := owner{r.index, p.Candidate}
			o, taken := owners[p.ID]
			if !taken {
				owners[p.ID] = me
			} else if other := rs.rules[o.rule].ID; o != me && (o.rule == me.rule || other != r.ID) { // compileID has reported equal ids
				bad.when(true, fmt.Sprintf("rules[%d].id", r.index),
					"%q names a limit of this rule and one of %q (rules[%d]), and both would be one counter: rename one of the rules",
					p.Name, other, o.rule)
				break
			}
		}
	}
}

// rankLayers ranks the rules of each layer by how specific their endpoints are.
func (rs *RuleSet) rankLayers() {
	layers := map[string][]*rule{}
	for i := range rs.rules {
		if r := &rs.rules[i]; r.Layer != "" {
			layers[r.Layer] = append(layers[r.Layer], r)
		}
	}
	for _, layer := range layers {
		endpoints := make([]*pattern.Endpoint, len(layer))
		for i, r := range layer {
			endpoints[i] = r.endpoint
		}
		for i, rank := range pattern.Ranks(endpoints) {
			layer[i].rank = rank
		}
	}
}

func (rs *RuleSet) index() {
	for i := range rs.rules {
		r := &rs.rules[i]
		r.endpointOnly = r.Match == Match{Endpoint: r.Match.Endpoint} && r.Tier == ""
		r.returnable = len(r.Statuses) > 0 || r.Amount != ""
		rs.slots = rs.slots || r.Algorithm == Concurrency
		r.keyOnly = len(r.by) == 1 && r.by[0].kind == byAPIKey
		r.byPath = slices.ContainsFunc(r.by, func(d dimension) bool { return d.kind == byPath })
		r.invented = r.byPath || slices.ContainsFunc(r.by, func(d dimension) bool {
			return d.kind == byAPIKey || strings.HasPrefix(d.name, "header:")
		})
		rs.readsPaths = rs.readsPaths || r.template != "" || r.byPath
		rs.limitsPaths = rs.limitsPaths || (r.template != "" || r.byPath) && !r.Shadow
		switch {
		case r.Descriptor != nil: // no request matches it: see compileDescriptor
		case r.endpoint != nil:
			rs.endpoints.Add(r.endpoint, r.index)
			if m := r.endpoint.Method; m != "" && !slices.Contains(rs.methods, m) {
				rs.methods = append(rs.methods, m)
			}
		case r.Match.EndpointRegex != "":
			if prefix := r.regex.Prefix; strings.HasSuffix(prefix, "/") { // the endpoint tree can look up whole segments
				segs := strings.FieldsFunc(prefix, func(c rune) bool { return c == '/' })
				rs.endpoints.Add(&pattern.Endpoint{Segs: segs, Subtree: true}, r.index)
			} else {
				rs.regexes.Add(prefix, r.index)
			}
		case r.Match.APIKeyPattern != "":
			rs.byKey.Add(r.Match.APIKeyPattern, r.index)
		default:
			rs.always = append(rs.always, r.index)
		}
	}
}
