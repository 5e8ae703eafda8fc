package weir

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
	"github.com/weirhq/weir/internal/private/link"
)

// RuleSet is a compiled rule document: immutable, and safe to share.
type RuleSet struct {
	doc         Rules
	rules       []rule
	attributes  []string
	methods     []string // that endpoints name
	allow, deny pattern.List
	keys        pattern.Keys
	tiers       map[string]bool // every tier that is named
	defaultTier string

	// Each rule stands in one of these, by the condition that is cheapest to look up.
	endpoints pattern.Endpoints
	regexes   pattern.Prefixes
	byKey     pattern.Keys
	always    []int32

	limitsPaths bool // a rule that is more than a shadow looks at the path
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
	regex    pattern.Regex // of Match.EndpointRegex, if there is one
	template string        // what `endpoint` in `by` stands for, if the rule has an endpoint
	rank     int           // among rules of its layer: lower is more specific
	cost     int64
	parts    int      // Split, if it is possible
	networks networks // 0 where the rule set's count
	// Shortcuts: the endpoint is all that the rule asks for, the API key all that it counts by.
	endpointOnly, keyOnly bool
	byPath                bool // by has a path
	invented              bool // a client can make its subjects up; of a path also one that is verified
}

// Compile checks and compiles a document. The error is [counter.Problems]: everything that is wrong with it.
func Compile(doc Rules) (*RuleSet, error) {
	rs := &RuleSet{doc: doc, tiers: map[string]bool{}, weights: map[string][]Weight{}, defaultTier: doc.DefaultTier, networks: usualNetworks}
	rs.doc.Rules = slices.Clone(doc.Rules)
	var bad problems
	rs.compileTiers(&bad)
	rs.checkPrices(&bad)
	checkAbuse(doc.Abuse, "abuse", &bad)
	rs.rules = make([]rule, len(rs.doc.Rules))
	ids, descriptors := map[string]int{}, map[string]int{}
	for i := range rs.doc.Rules {
		r := &rs.rules[i]
		r.Rule, r.index = &rs.doc.Rules[i], int32(i)
		path := fmt.Sprintf("rules[%d]", i)
		rs.compileID(r, path, ids, &bad)
		if r.Descriptor != nil {
			r.compileDescriptor(path, descriptors, &bad)
			continue
		}
		rs.compileRule(r, path, &bad)
	}
	rs.checkCounters(&bad)
	for i, p := range doc.Allow {
		addEntry(&rs.allow, fmt.Sprintf("allow[%d]", i), p, "none of them would be limited", &bad)
	}
	for i, p := range doc.Deny {
		addEntry(&rs.deny, fmt.Sprintf("deny[%d]", i), p, "all of them would be refused", &bad)
	}
	if len(bad) > 0 {
		return nil, counter.Problems(bad)
	}
	rs.rankLayers()
	rs.index()
	return rs, nil
}

// Version returns the document's version.
func (rs *RuleSet) Version() int64 { return rs.doc.Version }

// policiesOf is private.PoliciesOf.
func (rs *RuleSet) policiesOf(rule int) link.Policies { return rs.rules[rule].Policies }

// withVersion is private.WithVersion.
func (rs *RuleSet) withVersion(version int64) *RuleSet {
	c := *rs
	c.doc.Version = version
	return &c
}

// Rules returns the document. It must not be changed.
func (rs *RuleSet) Rules() Rules { return rs.doc }

func (rs *RuleSet) compileTiers(bad *problems) {
	for i, t := range rs.doc.Tiers {
		path := "tiers." + t.Name
		switch {
		case t.Name == "":
			bad.addf(fmt.Sprintf("tiers[%d]", i), "a tier needs a name")
		case rs.tiers[t.Name]:
			bad.addf(path, "the tier is listed twice")
		case len(t.Limits) == 0:
			bad.addf(path, `needs a limit such as "100/minute"`)
		}
		rs.tiers[t.Name] = true
		for j, l := range t.Limits {
			// Rules say what is counted by it, and how. A month is a fixed window in any case, and a fraction one of an amount.
			if l.Decimal = l.Fraction != 0; l.Calendar.Unit != counter.NoUnit {
				l.Algorithm = FixedWindow
			}
			if err := l.Validate(); err != nil {
				bad.addLimit(limitPath(path, j, len(t.Limits)), err)
			}
		}
	}
	if rs.defaultTier == "" && len(rs.doc.Tiers) > 0 {
		rs.defaultTier = rs.doc.Tiers[0].Name
	} else if rs.defaultTier != "" && !rs.tiers[rs.defaultTier] {
		bad.addf("default_tier", "%s", unknownTier(rs.defaultTier, rs.tiers))
	}
	for _, r := range rs.doc.Rules {
		for _, t := range r.Tiers {
			rs.tiers[t.Name] = true
		}
	}
	for i, k := range rs.doc.Keys {
		path := "keys." + k.Pattern
		if k.Pattern == "" {
			bad.addf(fmt.Sprintf("keys[%d]", i), "must be a key or a pattern such as sk_prod_*, got nothing")
		}
		if !rs.tiers[k.Tier] {
			bad.addf(path, "%s", unknownTier(k.Tier, rs.tiers))
		}
		rs.keys.Add(k.Pattern, int32(i))
	}
}

func unknownTier(name string, tiers map[string]bool) string {
	if len(tiers) == 0 {
		return fmt.Sprintf("there is no tier %q: no tiers are listed", name)
	}
	return fmt.Sprintf("there is no tier %q: write one of %s", name, strings.Join(slices.Sorted(maps.Keys(tiers)), ", "))
}

func limitPath(path string, i, n int) string {
	if n > 1 {
		return fmt.Sprintf("%s.limits[%d]", path, i)
	}
	return path
}

func (ps *problems) addLimit(path string, err error) {
	p := err.(counter.Problem)
	if p.Path != "" {
		path += "." + p.Path
	}
	ps.addf(path, "%s", p.Text)
}

func (rs *RuleSet) compileID(r *rule, path string, ids map[string]int, bad *problems) {
	path += ".id"
	id := strings.ToLower(r.ID)
	switch first, twice := ids[id]; {
	case id == "":
		bad.addf(path, "a rule needs an id, which clients see when it refuses them")
	case len(id) > 64:
		bad.addf(path, "must be at most 64 characters, got %d", len(id))
	case strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "":
		bad.addf(path, "must be of a-z, 0-9, _ and - only, got %q", r.ID)
	case twice:
		bad.addf(path, "%q is the id of rules[%d], too: ids must differ", id, first)
	default:
		ids[id] = int(r.index)
		r.ID = id
	}
}

func (rs *RuleSet) compileRule(r *rule, path string, bad *problems) {
	r.compileMatch(path+".match", bad)
	if r.Tier != "" && r.Match.APIKeyPattern == "" && !rs.tiers[r.Tier] {
		bad.addf(path+".tier", "%s", unknownTier(r.Tier, rs.tiers))
	}
	by := r.dimensions()
	for i, name := range by {
		d, err := parseDimension(name)
		switch {
		case err != nil:
			bad.addf(fmt.Sprintf("%s.by[%d]", path, i), "%v", err)
		case slices.Contains(r.by, d):
			bad.addf(fmt.Sprintf("%s.by[%d]", path, i), "%s is listed twice", name)
		}
		r.by = append(r.by, d)
		if d.kind == byAttr && !slices.Contains(rs.attributes, name) {
			rs.attributes = append(rs.attributes, name)
		}
	}
	r.compileNetworks(path, bad)
	for i, s := range r.Statuses {
		if (s < 1 || s > 5) && (s < 100 || s > 599) {
			bad.addf(fmt.Sprintf("%s.count.status[%d]", path, i), "must be an HTTP status such as 401, or a class such as 4xx, got %d", s)
		}
	}
	r.cost = max(r.Cost, 1)
	if r.Cost < 0 || r.Cost > counter.MaxTokens {
		bad.addf(path+".cost", "must be from 1 to %d, got %d", int64(counter.MaxTokens), r.Cost)
	}
	r.checkPastLimit(path, bad)
	rs.compileAmount(r, path, bad)
	checkAbuse(r.Abuse, path+".abuse", bad)
	r.compileSplit(path+".split", bad)
	r.compileScope(path, bad)
	rs.compileNumbers(r, path, strings.Join(by, ","), bad)
}

func (r *Rule) checkPastLimit(path string, bad *problems) {
	switch {
	case r.Book && (r.Algorithm == SlidingLog || r.Algorithm == LeakyQueue):
		bad.addf(path+".past_limit", "%s can't book past its limit: use token_bucket, leaky_bucket, fixed_window or sliding_window_counter", r.Algorithm)
	case r.CountRefused && r.Algorithm != FixedWindow:
		bad.addf(path+".past_limit", "%s doesn't count what it refuses: use fixed_window", r.Algorithm)
	}
}

func (r *rule) compileMatch(path string, bad *problems) {
	m := &r.Match
	if m.Endpoint != "" {
		e, err := pattern.ParseEndpoint(m.Endpoint)
		if err != nil {
			bad.addf(path+".endpoint", "%v", err)
		}
		r.endpoint, r.template = &e, m.Endpoint
	}
	if m.EndpointRegex != "" {
		var err error
		if r.regex, err = pattern.ParseRegex(m.EndpointRegex); err != nil {
			bad.addf(path+".endpoint_regex", "%v", err)
		}
		if r.template == "" {
			r.template = m.EndpointRegex
		}
	}
	switch {
	case m.NoKey && m.HasKey:
		bad.addf(path+".api_key", "no request has a key and has none: leave one of them out")
	case m.NoKey && m.APIKeyPattern != "":
		bad.addf(path+".api_key", "a request without a key can't match api_key_pattern %q: leave one of them out", m.APIKeyPattern)
	}
}

// compileNumbers prepares a rule's policies: its own numbers < its tier's < the key's.
func (rs *RuleSet) compileNumbers(r *rule, path, scope string, bad *problems) {
	abuse := cmp.Or(r.Abuse, rs.doc.Abuse)
	if abuse != nil && *abuse == (counter.Abuse{}) {
		abuse = nil
	}
	rs.abuse = rs.abuse || abuse != nil
	policies := func(limits []Limit, path, scope string, candidate bool) []*counter.Policy {
		out := make([]*counter.Policy, 0, len(limits))
		r.checkCalendar(limits, path, bad)
		for i, l := range limits {
			path := limitPath(path, i, len(limits))
			if l.Algorithm != r.Algorithm && l.Algorithm != 0 {
				bad.addf(path+".algorithm", "this limit is a %s, and its rule a %s, by which all of a rule's limits count: set the rule's, and leave the limit's out", l.Algorithm, r.Algorithm)
				continue
			}
			l = r.fit(l)
			if l.MaxDelay == 0 {
				l.MaxDelay = r.MaxDelay
			}
			if l.MaxDelay == 0 && l.Algorithm == LeakyQueue {
				l.MaxDelay = 30 * time.Second
			}
			name := r.ID
			if len(limits) > 1 {
				name += "-" + l.Period()
			}
			d := r.definition(l)
			d.Name, d.Scope, d.Split = name, scope, r.parts
			if candidate {
				d.Candidate, d.Shadow, d.Book, d.CountRefused = true, true, false, false
			}
			if !d.Shadow && !r.Book {
				d.Abuse = abuse
			}
			p, err := counter.Define(d)
			if err != nil {
				bad.addLimit(path, err)
				continue
			}
			switch usual := counter.Amount(times(r.Default, r.cost)); {
			case r.Book:
			case r.Amount == "" && r.cost > l.Max():
				bad.addf(path, "refuses everything: a request costs %d and at most %d fit", r.cost, l.Max())
			case r.Amount != "" && usual > l.Capacity():
				bad.addf(path, "refuses every request that lacks %s: it is charged %s, and at most %s fit", r.Amount, usual, l.Capacity())
			}
			if slices.ContainsFunc(out, func(q *counter.Policy) bool { return q.Name == name }) {
				bad.addf(path, "the rule has two limits over %s: keep the lower one", l.Period())
			}
			out = append(out, p)
		}
		return out
	}
	r.Base = policies(r.Limits, path, scope, false)
	r.ByTier = map[string][]*counter.Policy{}
	if len(r.Limits) == 0 {
		for _, t := range rs.doc.Tiers {
			if r.Algorithm == Concurrency {
				break // theirs are over a time
			}
			limits := slices.Clone(t.Limits)
			if r.Algorithm > LeakyQueue {
				for i := range limits { // a burst is a bucket's; the tier's limit holds for all
					limits[i].Burst, limits[i].Refill = 0, 0
				}
			}
			before := len(*bad)
			r.ByTier[t.Name] = policies(limits, path, scope, false)
			for i := before; i < len(*bad); i++ {
				(*bad)[i].Text = fmt.Sprintf("with the numbers of tier %q: %s", t.Name, (*bad)[i].Text)
			}
		}
		r.Base = r.ByTier[rs.defaultTier]
	}
	for _, t := range r.Tiers {
		if len(t.Limits) == 0 {
			bad.addf(path+".tiers."+t.Name, `needs a limit such as "100/minute"`)
		}
		r.ByTier[t.Name] = policies(t.Limits, path+".tiers."+t.Name, scope, false)
	}
	if len(r.Override) > 0 && r.Descriptor == nil && !slices.Contains(r.by, dimension{kind: byAPIKey}) {
		bad.addf(path+".override", "%s", keyOverride(scope))
	}
	r.ByKey = make(map[string][]*counter.Policy, len(r.Override))
	for _, key := range slices.Sorted(maps.Keys(r.Override)) {
		limits := r.Override[key]
		if len(limits) == 0 {
			bad.addf(path+".override."+key, `needs a limit such as "100/minute"`)
		}
		if key == "" || strings.Contains(key, "*") {
			bad.addf(path+".override."+key, "must be a whole API key: overrides take no patterns")
		}
		r.ByKey[key] = policies(limits, path+".override."+key, scope, false)
	}
	r.Candidates = policies(r.Candidate, path+".candidate", scope+" candidate", true)
	if len(r.Limits) == 0 && r.Base == nil && (r.Tier == "" || r.Match.APIKeyPattern != "" || r.ByTier[r.Tier] == nil) {
		if r.Algorithm == Concurrency {
			bad.addf(path, "needs a limit: how many requests may be in flight, such as 20")
			return
		}
		bad.addf(path, `has no numbers: give it a limit such as "100/minute", or list tiers to take them from`)
	}
}

// keyOverride says what to write instead of an override in a rule that doesn't count by API key. The names of overrides are
// compared with API keys only, so `override: {acme: …}` would never apply to the org acme.
func keyOverride(by string) string {
	counts := "counts by " + strings.ReplaceAll(by, ",", ", ")
	if by == "" {
		counts = "has one counter for all"
	}
	return fmt.Sprintf("an override names an API key, and this rule %s: write `tiers: {NAME: 5000/minute}` instead, for a tier that requests carry or that `keys` gives them, or put `api_key` into `by`", counts)
}

// checkCounters: no two limits that can hold for one request may be one counter. Of a rule, its own
// numbers, its tiers' and its overrides' are alternatives, and share it on purpose; a candidate and another
// rule must not. They would if their names are the same, since a rule's limits are named
// after their windows: "api" over a second and over a month are api-1s and api-month.
func (rs *RuleSet) checkCounters(bad *problems) {
	type owner struct {
		rule      int32
		candidate bool
	}
	owners := map[uint64]owner{}
	for i := range rs.rules {
		r := &rs.rules[i]
		told := false
		for _, p := range r.All() {
			me := owner{r.index, p.Candidate}
			o, taken := owners[p.ID]
			if !taken {
				owners[p.ID] = me
			} else if o != me && !told && (o.rule == me.rule || rs.rules[o.rule].ID != r.ID) { // or it was told of already
				told = true
				bad.addf(fmt.Sprintf("rules[%d].id", r.index), "%q names a limit of this rule and one of %q (rules[%d]), and both would be one counter: rename one of the rules", p.Name, rs.rules[o.rule].ID, o.rule)
			}
		}
	}
}

// rankLayers orders the rules of each layer.
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
		r.keyOnly = len(r.by) == 1 && r.by[0].kind == byAPIKey
		r.byPath = slices.ContainsFunc(r.by, func(d dimension) bool { return d.kind == byPath })
		r.invented = r.byPath || slices.ContainsFunc(r.by, func(d dimension) bool {
			return d.kind == byAPIKey || strings.HasPrefix(d.name, "header:")
		})
		rs.limitsPaths = rs.limitsPaths || (r.template != "" || r.byPath) && !r.Shadow
		switch {
		case r.Descriptor != nil: // it applies to none of the requests that are looked up here
		case r.endpoint != nil:
			rs.endpoints.Add(r.endpoint, r.index)
			if m := r.endpoint.Method; m != "" && !slices.Contains(rs.methods, m) {
				rs.methods = append(rs.methods, m)
			}
		case r.Match.EndpointRegex != "":
			if prefix := r.regex.Prefix; strings.HasSuffix(prefix, "/") { // whole segments are found on the way to the endpoints
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
