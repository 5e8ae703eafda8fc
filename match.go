package weir

import (
	"bytes"
	"slices"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
)

// match is the scratch space of a check. Checks reuse it, so that they don't allocate.
type match struct {
	ruling

	readings pattern.Readings // the ways in which servers may read the path
	found    []int32          // the candidates for this reading: rules whose indexed condition holds
	chosen   []*rule          // the rules that apply to this reading

	charges  []counter.Charge
	results  []counter.Result
	owners   []*rule // the rules of charges, except of those that the Limiter adds
	subjects []byte  // the subjects of charges, one after another
	apart    []int   // indexes of charges that were decided separately: in Options.Local, or by address
	local    []int   // indexes of the charges that were decided in Options.Local

	few struct { // where the slices above begin: close together, and in place for most checks
		charges  [4]counter.Charge
		results  [4]counter.Result
		owners   [4]*rule
		chosen   [4]*rule
		found    [8]int32
		subjects [128]byte
	}

	// These are for observers.
	traced      func(*Observation) // ends the span of the decision, or nil
	began       time.Time          // when a decision began that is timed
	decision    Decision
	observation Observation
}

// ruling is the part of a match that is zero when a check begins.
type ruling struct {
	reason  Reason // ReasonWithin, or the reason why a list, the path or a missing identity decided
	pattern string // the list entry that decided
	rule    *rule  // the rule that decided

	tier    string
	tierWhy string // where the tier comes from; "" if it is the default
	path    []byte // the reading of the path that is being matched
	key     string // replaces a missing address in a limit by address

	guest    bool // the client's key isn't verified
	watched  bool // the guard must be asked
	holds    bool // some charge has a Hold
	nameless bool // the request is counted by address but has none, and no key, user or organization either
}

func newMatch() *match {
	m := new(match)
	m.charges, m.results, m.owners = m.few.charges[:0], m.few.results[:0], m.few.owners[:0]
	m.chosen, m.found, m.subjects = m.few.chosen[:0], m.few.found[:0], m.few.subjects[:0]
	m.observation.Decision = &m.decision
	return m
}

// Reasons why a rule doesn't apply. Explain replaces the placeholders in braces.
const (
	applies     = ""
	wrongMethod = "the method {method} isn't that of endpoint {endpoint}"
	isPreflight = "a CORS preflight is exempt from rules that don't name OPTIONS: preflight_limit holds instead"
	hasKey      = "the request has a key"
	hasNoKey    = "the request has no key"
	wrongKey    = "the key doesn't match api_key_pattern {pattern}"
	wrongTier   = "the rule is for tier {rule's tier}, the request is in tier {tier}"
	wrongRegex  = "the path doesn't match endpoint_regex {regex}"
)

// run matches a request against the rules, and leaves the charges in m. No other code decides which rules apply.
func (rs *RuleSet) run(req *Request, m *match) {
	m.reset()
	m.guest = !req.KeyVerified
	if !(rs.deny.Empty() && rs.allow.Empty()) && rs.listed(req, m) {
		return
	}
	if len(rs.tiers) > 0 {
		rs.resolveTier(req, m)
	}
	if rs.readsPaths && req.Path != "" && !m.readings.Read(req.Path) && rs.limitsPaths {
		m.reason = ReasonUnreadablePath
		return
	}
	for i := 0; i == 0 || i < m.readings.Len(); i++ {
		rs.hold(req, m, i)
		for _, r := range m.chosen {
			from := len(m.subjects)
			if !rs.subject(r, req, m) {
				if r.Missing == MissingRefuse {
					m.reason, m.rule, m.charges, m.owners = ReasonIdentityRequired, r, m.charges[:0], m.owners[:0]
					return
				}
				continue
			}
			if subject := slices.Clip(m.subjects[from:]); i == 0 || !m.charged(r, subject) {
				rs.charge(r, req, subject, m)
			}
		}
	}
}

// hold finds the rules that apply to the i-th reading of the path, since servers may read some paths in several ways. It decides
// layers for each reading separately, so that the most specific rule is charged whichever way the server reads the path.
func (rs *RuleSet) hold(req *Request, m *match, i int) {
	if i < m.readings.Len() {
		m.path = m.readings.At(i)
	}
	m.found, m.chosen = rs.candidates(req, m.path, m.found[:0]), m.chosen[:0]
	for _, i := range m.found {
		if r := &rs.rules[i]; rs.check(r, req, m) == applies {
			m.choose(r)
		}
	}
}

// charged reports whether an earlier reading of the path already led to the same rule and subject.
func (m *match) charged(r *rule, subject []byte) bool {
	for i, o := range m.owners {
		if o == r && bytes.Equal(m.charges[i].Subject, subject) {
			return true
		}
	}
	return false
}

func (m *match) reset() {
	m.ruling = ruling{}
	m.readings.Reset()
	m.subjects, m.owners, m.charges = m.subjects[:0], m.owners[:0], m.charges[:0]
	m.apart, m.local = m.apart[:0], m.local[:0]
}

// listed reports whether the deny list, or else the allow list, decides the request.
func (rs *RuleSet) listed(req *Request, m *match) bool {
	if m.pattern = rs.deny.Match(req.APIKey, req.IP); m.pattern != "" {
		m.reason = ReasonDenied
		return true
	}
	key := req.APIKey
	if !req.KeyVerified {
		key = ""
	}
	if m.pattern = rs.allow.Match(key, req.IP); m.pattern != "" {
		m.reason = ReasonBypassed
	}
	return m.pattern != ""
}

func (rs *RuleSet) resolveTier(req *Request, m *match) {
	m.tier = rs.defaultTier
	if req.TierVerified && rs.tiers[req.Tier] {
		m.tier, m.tierWhy = req.Tier, "the request carries it"
	} else if req.KeyVerified && req.APIKey != "" {
		if i := rs.keys.First(req.APIKey); i >= 0 {
			m.tier, m.tierWhy = rs.doc.Keys[i].Tier, "a keys entry matches"
		}
	}
}

// candidates appends the rules whose indexed condition holds, in the order of the file.
func (rs *RuleSet) candidates(req *Request, path []byte, found []int32) []int32 {
	//lint:ignore S1011 copying a few numbers one by one is faster
	for _, i := range rs.always {
		found = append(found, i)
	}
	if req.APIKey != "" && !rs.byKey.Empty() {
		found = rs.byKey.Find(req.APIKey, found)
	}
	if len(path) > 0 {
		found = rs.endpoints.Find(path, found)
		found = pattern.FindPrefixes(&rs.regexes, path, found)
	}
	for i := 1; i < len(found); i++ {
		if found[i-1] >= found[i] { // a path with empty segments may lead to the same rule twice
			slices.Sort(found)
			return slices.Compact(found)
		}
	}
	return found
}

// check returns the constant applies if a candidate's other conditions are met, or else why the rule doesn't apply.
func (rs *RuleSet) check(r *rule, req *Request, m *match) string {
	switch {
	case r.endpoint != nil && r.endpoint.Method != req.Method && !r.matchesMethod(req):
		return wrongMethod // as most candidates that don't apply
	case r.endpointOnly && !req.Preflight:
		return applies
	case req.Preflight && (r.endpoint == nil || r.endpoint.Method != "OPTIONS"):
		return isPreflight
	case r.Match.NoKey && req.APIKey != "":
		return hasKey
	case r.Match.HasKey && req.APIKey == "":
		return hasNoKey
	case r.Match.APIKeyPattern != "" && !pattern.MatchGlob(r.Match.APIKeyPattern, req.APIKey):
		return wrongKey
	case r.Tier != "" && r.Match.APIKeyPattern == "" && r.Tier != m.tier:
		return wrongTier
	case r.Match.EndpointRegex != "" && !r.regex.Match(m.path):
		return wrongRegex
	}
	return applies
}

// matchesMethod reports whether the rule's endpoint accepts the request's method. For the exception, see [Request.Reserve].
func (r *rule) matchesMethod(req *Request) bool {
	return r.endpoint.MatchesMethod(req.Method) || r.Amount != "" && req.Reserve > 0
}

// choose adds a rule that applies. Of the rules in a layer, it keeps only the most specific.
func (m *match) choose(r *rule) {
	if r.Layer == "" || m.leads(r) {
		m.chosen = append(m.chosen, r)
	}
}

// leads reports whether a rule is more specific than the chosen one of its layer, which it removes.
func (m *match) leads(r *rule) bool {
	i := slices.IndexFunc(m.chosen, func(o *rule) bool { return o.Layer == r.Layer })
	if i < 0 {
		return true
	}
	if r.rank > m.chosen[i].rank {
		return false
	}
	m.chosen = slices.Delete(m.chosen, i, i+1)
	return true
}

// numbers returns the rule's policies for this request: those of its key, else those of its tier, else the default.
func (r *rule) numbers(req *Request, tier string) []*counter.Policy {
	if len(r.ByKey) > 0 {
		if p, ok := r.ByKey[req.APIKey]; ok {
			return p
		}
	}
	if len(r.ByTier) > 0 {
		if p, ok := r.ByTier[tier]; ok {
			return p
		}
	}
	return r.Base
}

// charge charges a request to the rule's limits. The subject stays valid, even if m.subjects moves.
func (rs *RuleSet) charge(r *rule, req *Request, subject []byte, m *match) {
	n := r.cost
	switch {
	case r.Amount != "":
		var charged bool
		if n, charged = rs.asked(r, req); !charged {
			return
		}
	case req.Cost > 1:
		n *= min(req.Cost, 2*counter.MaxTokens/r.cost) // may exceed any limit, but not overflow
	}
	from := len(m.charges)
	for _, p := range r.numbers(req, m.tier) {
		m.add(p, r)
	}
	for _, p := range r.Candidates {
		m.add(p, r)
	}
	guest := r.invented && (m.guest || r.byPath)
	for i := from; i < len(m.charges); i++ {
		c := &m.charges[i]
		c.Subject, c.N, c.Peek = subject, n, req.Peek || n == 0
		c.Guest, c.Returnable = guest, req.Receipt || r.returnable
		if req.guess && c.Policy.Amount != "" {
			c.N = min(n, int64(c.Policy.Limit.Capacity()))
		}
	}
}

// add adds a charge to one of a rule's policies. The caller fills in the rest, in place: to copy a charge right after it was
// written takes as long as 50 instructions.
func (m *match) add(p *counter.Policy, r *rule) {
	m.owners, m.charges = append(m.owners, r), append(m.charges, counter.Charge{})
	m.charges[len(m.charges)-1].Policy = p
}
