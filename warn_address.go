package weir

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
)

// warnOfAddresses finds rules by address that refuse a client before it has used what its tier or its override gives it.
func (rs *RuleSet) warnOfAddresses() (c pattern.Budget) {
	c = maxCompared
	var quotas []*rule
	for i := range rs.rules {
		r := &rs.rules[i]
		perClient := slices.ContainsFunc(r.by, func(d dimension) bool { return d.kind == byAPIKey || d.kind == byUser })
		if perClient && r.countsRequests() {
			quotas = append(quotas, r)
		}
	}
	for i := range rs.rules {
		a := &rs.rules[i]
		if !a.capsAddresses() {
			continue
		}
		untiered := a.withoutTier()
		for _, q := range quotas {
			if !c.Spend(a.size() + q.size() + 16*(len(q.byTier)+len(q.overrides))) {
				rs.warnf("rules", "too many rules count by address to hold them all against the others: those further down may cap a tier; write fewer")
				return c
			}
			untiered.Match.HasKey = a.Match.HasKey && !slices.Contains(q.by, dimension{kind: byAPIKey}) // whoever q counts by key has one
			if a.Layer != "" && a.Layer == q.Layer || !untiered.covers(q) {
				continue
			}
			if rs.warnOfCappedTier(a, q) {
				break // one warning for a rule is enough to find its mistake
			}
			rs.warnOfCappedOverride(a, q, &c)
		}
	}
	return c
}

// capsAddresses: the rule limits all requests of an address.
func (r *rule) capsAddresses() bool {
	return len(r.by) == 1 && r.by[0].kind == byIP && !r.Shadow && !r.Book && r.countsRequests()
}

// countsRequests: the rule counts every request over a time, and not amounts, slots or certain answers.
func (r *rule) countsRequests() bool {
	return r.Descriptor == nil && r.Amount == "" && r.Algorithm != Concurrency && len(r.Statuses) == 0
}

// withoutTier is a copy of the rule without its tier, and without conditions that all requests meet.
func (r *rule) withoutTier() *rule {
	doc, c := *r.Rule, *r
	doc.Tier, c.Rule = "", &doc
	if e := r.endpoint; e != nil && e.Method == "" && e.Subtree && len(e.Segs) == 0 {
		c.endpoint = nil
	}
	if doc.Match.EndpointRegex != "" && r.regex.Match([]byte("/")) && r.regex.Match([]byte("/a-path-that-no-rule-names/")) {
		doc.Match.EndpointRegex = ""
	}
	if strings.Trim(doc.Match.APIKeyPattern, "*") == "" {
		doc.Match.APIKeyPattern = ""
	}
	return &c
}

// isFor: the rule can apply to requests of a tier.
func (r *rule) isFor(tier string) bool { return r.tierCondition() == "" || r.tierCondition() == tier }

// warnOfCappedTier finds tiers whose numbers in rule q are above what rule a admits for an address. It names the one with the
// highest limit.
func (rs *RuleSet) warnOfCappedTier(a, q *rule) bool {
	highest, worst, admits, gives := 0., "", "", ""
	for tier, client := range q.byTier {
		rate := slowest(client)
		if !a.isFor(tier) || !q.isFor(tier) || rate < highest || rate == highest && tier > worst {
			continue
		}
		if address, own := a.capped(a.numbers(&Request{}, tier), q, client); address != "" {
			highest, worst, admits, gives = rate, tier, address, own
		}
	}
	if worst == "" {
		return false
	}
	advice := "raise its limit"
	if worst != rs.defaultTier && a.Tier == "" && a.Match.APIKeyPattern == "" {
		advice = fmt.Sprintf("write `tier: %s`, so that it is only for clients without a better tier, or raise its limit", rs.defaultTier)
	}
	rs.warnf(rulePath(a), "caps tier %q: %q gives a client of that tier %s, and this rule admits %s for its address; %s", worst, q.ID, gives, admits, advice)
	return true
}

// warnOfCappedOverride finds overrides in rule q that are above what rule a admits for an address. It names the first by its key.
func (rs *RuleSet) warnOfCappedOverride(a, q *rule, c *pattern.Budget) {
	first, admits, gives := "", "", ""
	for key, client := range q.overrides {
		if first != "" && key > first {
			continue
		}
		tier := rs.defaultTier
		if i := rs.keys.FirstWithin(key, int32(len(rs.doc.Keys)), c); i >= 0 {
			tier = rs.doc.Keys[i].Tier
		}
		if *c < 0 {
			return
		}
		if !a.isFor(tier) {
			continue
		}
		if address, own := a.capped(a.numbers(&Request{}, tier), q, client); address != "" {
			first, admits, gives = key, address, own
		}
	}
	if first != "" {
		rs.warnf(rulePath(q)+".override."+first, "is capped: it gives the client %s, and %q admits %s for its address; raise that limit, or put the key into a tier that %q isn't for", gives, a.ID, admits, a.ID)
	}
}

// capped says what rule a admits for an address, and what rule q gives a client, if the first is less; else both are "".
func (a *rule) capped(address []*counter.Policy, q *rule, client []*counter.Policy) (admits, gives string) {
	if len(address) == 0 || len(client) == 0 {
		return "", ""
	}
	// A sum of rates that differ by rounding alone is the same.
	if slowest(address)/float64(a.cost) < slowest(client)/float64(q.cost)*(1-1e-9) {
		return slowestOf(address).Limit.String(), slowestOf(client).Limit.String()
	}
	const longest = time.Hour // quotas over more aren't meant to be taken at once
	if p := slowestOf(client); p.Limit.Window > longest {
		return "", ""
	}
	if most, least := smallest(address)/a.cost, smallest(client)/q.cost; most < least {
		return fmt.Sprintf("%d requests at once", most), fmt.Sprintf("%d at once", least)
	}
	return "", ""
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
