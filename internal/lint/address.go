package lint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// warnOfAddresses finds rules by address that refuse a client before the client has used up what its tier or its
// override allows.
func (d *document) warnOfAddresses() {
	var quotas []*rule
	for _, r := range d.rules {
		if r.countsBy("api_key", "user") && r.countsRequests() {
			quotas = append(quotas, r)
		}
	}
	for _, a := range d.rules {
		if !a.capsAddresses() {
			continue
		}
		untiered := a.withoutTier()
		for _, q := range quotas {
			if !d.budget.Spend(a.size() + q.size() + 16*(len(q.ByTier)+len(q.ByKey))) {
				return
			}
			untiered.Match.HasKey = a.Match.HasKey && !q.countsBy("api_key") // if q counts by key, each of its clients has a key
			if a.Layer != "" && a.Layer == q.Layer || !untiered.covers(q) {
				continue
			}
			if d.warnOfCappedTier(a, q) {
				break // one warning per rule is enough
			}
			d.warnOfCappedOverride(a, q)
		}
	}
}

// capsAddresses reports whether the rule limits all requests of an address.
func (r *rule) capsAddresses() bool {
	return len(r.by) == 1 && r.by[0] == "ip" && !r.Shadow && !r.Book && r.countsRequests()
}

// countsRequests reports whether the rule counts every request over a time, as opposed to amounts, slots, or only
// certain responses.
func (r *rule) countsRequests() bool {
	return r.Descriptor == nil && r.Amount == "" && r.Algorithm != weir.Concurrency && len(r.Statuses) == 0
}

// withoutTier returns a copy of the rule without its tier, and without conditions that are true for all requests.
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

// numbers returns the rule's policies for requests of a tier.
func (r *rule) numbers(tier string) []*counter.Policy {
	if p, ok := r.ByTier[tier]; ok {
		return p
	}
	return r.Base
}

// isFor reports whether the rule can apply to requests of a tier.
func (r *rule) isFor(tier string) bool { return r.tierCondition() == "" || r.tierCondition() == tier }

// warnOfCappedTier finds tiers for which rule q admits more than rule a admits for an address. It warns of the one with
// the highest limit.
func (d *document) warnOfCappedTier(a, q *rule) bool {
	fastest := func(x, y string) int {
		return cmp.Or(cmp.Compare(PerSecond(slowest(q.ByTier[y])), PerSecond(slowest(q.ByTier[x]))), strings.Compare(x, y))
	}
	for _, tier := range slices.SortedFunc(maps.Keys(q.ByTier), fastest) {
		if !a.isFor(tier) || !q.isFor(tier) {
			continue
		}
		if admits, gives := a.capped(a.numbers(tier), q, q.ByTier[tier]); admits != "" {
			advice := "raise its limit"
			if tier != d.DefaultTier && a.Tier == "" && a.Match.APIKeyPattern == "" {
				advice = fmt.Sprintf("write `tier: %s`, so that it is only for clients without a better tier, or raise its limit", d.DefaultTier)
			}
			d.warnf(a.path(), "caps tier %q: %q gives a client of that tier %s, and this rule admits %s for its address; %s", tier, q.ID, gives, admits, advice)
			return true
		}
	}
	return false
}

// warnOfCappedOverride finds overrides in rule q that admit more than rule a admits for an address. It warns of the
// first one, in the order of their keys.
func (d *document) warnOfCappedOverride(a, q *rule) {
	for _, key := range q.keys {
		tier := d.DefaultTier
		if i := d.keys.FirstWithin(key, int32(len(d.Keys)), &d.budget); i >= 0 {
			tier = d.Keys[i].Tier
		}
		if d.budget < 0 {
			return
		}
		if !a.isFor(tier) {
			continue
		}
		if admits, gives := a.capped(a.numbers(tier), q, q.ByKey[key]); admits != "" {
			d.warnf(q.path()+".override."+key, "is capped: it gives the client %s, and %q admits %s for its address; raise that limit, or put the key into a tier that %q isn't for", gives, a.ID, admits, a.ID)
			return
		}
	}
}

// capped compares what rule a admits for an address with what rule q admits for a client. If a admits less, it returns
// both limits as texts; otherwise it returns "".
func (a *rule) capped(address []*counter.Policy, q *rule, client []*counter.Policy) (admits, gives string) {
	if len(address) == 0 || len(client) == 0 {
		return "", ""
	}
	// Ignore differences that come from rounding alone.
	if x, y := slowest(address), slowest(client); PerSecond(x)/float64(a.cost) < PerSecond(y)/float64(q.cost)*(1-1e-9) {
		return x.String(), y.String()
	}
	const longest = time.Hour // clients of a quota over a longer time aren't expected to use it all at once
	if slowest(client).Window > longest {
		return "", ""
	}
	if most, least := smallest(address).Max()/a.cost, smallest(client).Max()/q.cost; most < least {
		return fmt.Sprintf("%d requests at once", most), fmt.Sprintf("%d at once", least)
	}
	return "", ""
}
