package lint

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/pattern"
)

// Warnings returns warnings about what a valid document allows but its author probably doesn't mean. Each warning says
// what to do about it. set must be compiled from doc.
func Warnings(doc weir.Rules, set *weir.RuleSet) []counter.Problem {
	d := open(set)
	d.warnOfSpelling(doc)
	for _, search := range []func(){d.warnOfGaps, d.warnOfTiers, d.warnOfAbuse, d.warnOfScopes, d.warnOfCounters, d.warnOfUnpriced} {
		search()
	}
	for _, s := range searches {
		d.budget = maxCompared
		if s.search(d); d.budget < 0 {
			d.warnf(s.path, "there are too many to hold them all against each other: mistakes further down aren't found; write fewer patterns with an asterisk before their end, or more layers")
		}
	}
	return d.warnings
}

// searches find mistakes by comparing many things with many others. Each search has a budget. If the budget isn't
// enough, there is a warning at path.
var searches = []struct {
	search func(*document)
	path   string
}{
	{(*document).warnOfKeys, "keys"}, {(*document).warnOfLists, "rules"}, {(*document).warnOfOverrides, "rules"}, {(*document).warnOfLayers, "rules"},
	{(*document).warnOfPaths, "rules"}, {(*document).warnOfPrices, "prices"}, {(*document).warnOfAddresses, "rules"},
}

// maxCompared bounds how many bytes of patterns and paths each search looks at. Otherwise a document of a few megabytes
// could keep a node busy for minutes. The bound is enough for thousands of rules, and takes some tenths of a second.
const maxCompared = 1 << 26

// accurateCounter is the smallest limit for which a sliding counter admits at most 2% less than a sliding log.
const accurateCounter = 50

// warnOfCounters finds sliding counters that admit less than their limit, because each request is a large part of it.
func (d *document) warnOfCounters() {
	for _, r := range d.rules {
		if r.Algorithm != weir.SlidingCounter {
			continue
		}
		least := int64(accurateCounter)
		for _, policies := range append(slices.Collect(maps.Values(r.ByTier)), r.Base) {
			for _, p := range policies {
				least = min(least, p.Limit.Count/max(1, r.cost))
			}
		}
		if least < accurateCounter {
			loss := (100 + max(2, least) - 1) / max(2, least)
			d.warnf(r.path()+".algorithm", "a client that asks steadily for more than the limit gets up to %d%% less: the counter is exact to about one request, and %d of them fit; below %d write `algorithm: sliding_window_log`, which is exact", loss, max(1, least), accurateCounter)
		}
	}
}

// warnOfPrices finds prices that apply to no model.
func (d *document) warnOfPrices() {
	for i, p := range d.Prices {
		for _, o := range d.Prices[:i] {
			if !d.budget.Spend(len(p.Name) + len(o.Name)) {
				return
			}
			// Look the pattern up as if it were a name. Its asterisk then counts as an ordinary character, which only another
			// pattern's asterisk matches.
			if pattern.MatchGlob(o.Name, p.Name) {
				d.warnf("prices."+p.Name, "no model gets here: %q stands before it, matches the same models, and the first match wins; move it up, or remove it", o.Name)
				break
			}
		}
	}
}

// warnOfUnpriced finds rules that count money although some models have no price. The gateway charges those models the
// highest price, and the other edges charge nothing.
func (d *document) warnOfUnpriced() {
	made := func(w weir.Sum) bool { return w.Name == "usd" } // without prices, usd is computed from weights
	anyModel := func(p weir.Sum) bool { return strings.Trim(p.Name, "*") == "" }
	if len(d.Prices) == 0 || slices.ContainsFunc(d.Weights, made) || slices.ContainsFunc(d.Prices, anyModel) {
		return
	}
	free := func(r *rule) bool { return r.Amount == "usd" && r.Default == 0 }
	if i := slices.IndexFunc(d.rules, free); i >= 0 {
		d.warnf("prices", "the gateway charges a model without a price the highest price in the list; the other edges don't charge it by %q, unless the request says how many usd it takes: add a price for \"*\" at the end, or give the rule a `default`", d.rules[i].ID)
	}
}

// warnOfAbuse finds abuse settings that never start a cooldown.
func (d *document) warnOfAbuse() {
	for _, r := range d.rules {
		if a := r.Abuse; a != nil && *a != (counter.Abuse{}) {
			if why := r.neverAbused(a); why != "" {
				d.warnf(r.path()+".abuse", "begins no cooldown: %s", why)
			}
		}
	}
	if a := d.Abuse; a != nil && *a != (counter.Abuse{}) && !slices.ContainsFunc(d.rules, func(r *rule) bool { return r.Abuse == nil && r.neverAbused(a) == "" }) {
		d.warnf("abuse", "begins no cooldown: no rule that can refuse a client takes it; a rule's own `abuse` replaces it, and rules with `shadow` or `past_limit: book` refuse no client")
	}
}

// mostRefusals is the refusals per second that no client can exceed.
const mostRefusals = 1_000_000

// neverAbused returns why no client of the rule can start a cooldown, or "".
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
		return len(policies) > 0 && PerSecond(slowest(policies))/float64(r.cost) <= mostRefusals
	}
	if slices.ContainsFunc(append(slices.Collect(maps.Values(r.ByTier)), r.Base), reachable) {
		return ""
	}
	return "only a client that sends more than twice what the limit admits begins one, and none sends so much; lower the limit, or leave out `abuse`"
}

// addressHeaders are headers in which proxies send a client's address, and in which clients can send anything.
var addressHeaders = []string{"X-Forwarded-For", "X-Real-IP", "Forwarded", "CF-Connecting-IP", "True-Client-IP", "X-Client-IP"}

// warnOfSpelling finds names and patterns that are probably misspelled.
func (d *document) warnOfSpelling(written weir.Rules) {
	eachPattern(written, func(path, _, odd string) {
		if odd != "" {
			d.warnf(path, "%s", odd)
		}
	})
	for i, r := range d.rules {
		if was := written.Rules[i].ID; r.ID != was {
			d.warnf(r.path()+".id", "%q is read as %q: ids are in lower case", was, r.ID)
		}
	}
	wide := func(list string, entries []string, consequence string) {
		for i, entry := range entries {
			net, err := new(pattern.List).Add(entry)
			if err == nil && net.IsValid() && (net.Addr().Is4() && net.Bits() < 8 || net.Addr().Is6() && net.Bits() < 16 && net.Overlaps(publicIPv6)) {
				d.warnf(fmt.Sprintf("%s[%d]", list, i), "%q covers a large part of all addresses, and %s: name those that are meant, as in 203.0.113.0/24", strings.TrimSpace(entry), consequence)
			}
		}
	}
	wide("allow", d.Allow, "none of them would be limited")
	wide("deny", d.Deny, "all of them would be refused")
}

// publicIPv6 is the range of all public IPv6 addresses.
var publicIPv6 = netip.MustParsePrefix("2000::/3")

// warnOfGaps finds requests, and clients, that no rule limits.
func (d *document) warnOfGaps() {
	// A document that has only rules for Envoy's descriptors has no gaps.
	catchAll := len(d.rules) > 0 && !slices.ContainsFunc(d.rules, func(r *rule) bool { return r.Descriptor == nil })
	ipRule, identity := false, (*rule)(nil)
	for _, r := range d.rules {
		if r.Descriptor != nil {
			continue
		}
		if r.Match.NoKey && r.Missing == weir.MissingSkip && r.countsBy("api_key") {
			d.warnf(r.path(), "counts nothing: it is for requests without a key, and skips those; write `by: [ip]`")
		}
		if (r.IPv4Prefix != 0 || r.IPv6Prefix != 0) && !r.countsBy("ip") && (len(r.by) == 0 || r.Missing != weir.MissingIP) {
			d.warnf(r.path(), "`ipv4_prefix` and `ipv6_prefix` change nothing: the rule counts by no address; leave them out, or write `ip` in `by`")
		}
		for _, by := range r.by {
			for _, name := range addressHeaders {
				if strings.EqualFold(by, "header:"+name) {
					d.warnf(r.path(), "counts by %s, in which a client can write another address for each request: write `by: [ip]`, and name your proxies in --trusted-proxies", name)
				}
			}
		}
		if r.Shadow {
			continue
		}
		unconditional := r.Match == weir.Match{} && (r.Tier == "" || r.Match.APIKeyPattern != "") && r.Missing != weir.MissingSkip
		catchAll = catchAll || unconditional
		switch {
		case r.countsBy("ip"):
			ipRule = true
		case identity == nil && (r.countsBy("api_key", "user", "org") || slices.ContainsFunc(r.by, isAttribute)):
			identity = r
		}
	}
	if !catchAll {
		d.warnf("rules", "a request can match no rule at all and is then not limited: add a rule without `match`")
	}
	if identity != nil && !ipRule {
		d.warnf(identity.path(), "no rule counts by ip behind it: a client that invents a new key for each request is not limited; add a rule with `by: [ip]`")
	}
}

// warnOfTiers finds listed tiers that no key, rule or default leads to.
func (d *document) warnOfTiers() {
	named := map[string]bool{d.DefaultTier: true}
	for _, k := range d.Keys {
		named[k.Tier] = true
	}
	for _, r := range d.rules {
		named[r.Tier] = true
		for _, t := range r.Tiers {
			named[t.Name] = true
		}
	}
	for _, t := range d.Tiers {
		if !named[t.Name] {
			d.warnf("tiers."+t.Name, "nobody is in this tier, unless requests carry it: no key leads to it and no rule names it; add a pattern for it under `keys`, or remove it")
		}
	}
}

// warnOfKeys finds patterns that come after a pattern that matches all of their keys.
func (d *document) warnOfKeys() {
	for i, k := range d.Keys {
		// Look the pattern up as if it were a key. Its asterisk then counts as an ordinary character, which only another
		// pattern's asterisk matches.
		first := d.keys.FirstWithin(k.Pattern, int32(i), &d.budget)
		if d.budget < 0 {
			return
		}
		if first >= 0 && d.Keys[first].Tier != k.Tier {
			d.warnf("keys."+k.Pattern, "no key gets here: %q stands before it, matches the same keys, and the first match wins; move it up, or remove it", d.Keys[first].Pattern)
		}
	}
}

// warnOfLists finds rules and overrides for keys that the allow or deny list decides about.
func (d *document) warnOfLists() {
	for _, r := range d.rules {
		if p := r.Match.APIKeyPattern; p != "" {
			path := r.path() + ".match.api_key_pattern"
			if by := d.deny.MatchWithin(p, &d.budget); by != "" {
				d.warnf(path, "the rule applies to nobody: %q on the deny list refuses these keys first; remove one of them", by)
			} else if by := d.allow.MatchWithin(p, &d.budget); by != "" {
				d.warnf(path, "the rule applies to no verified key: %q on the allow list lets these keys bypass every rule; remove one of them", by)
			}
		}
		if !d.deny.Empty() {
			for _, key := range r.keys {
				if by := d.deny.MatchWithin(key, &d.budget); by != "" {
					d.warnf(r.path()+".override."+key, "changes nothing: %q on the deny list refuses this key; remove one of them", by)
				}
			}
		}
		if d.budget < 0 {
			return
		}
	}
}

// warnOfOverrides finds overrides for keys that their rule doesn't match, and overrides whose name is probably not a
// key.
func (d *document) warnOfOverrides() {
	for _, r := range d.rules {
		for _, key := range r.keys {
			if !d.budget.Spend(len(key) + len(r.Match.APIKeyPattern)) {
				return
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
			d.warnf(r.path()+".override."+key, "never applies: %s", why)
		}
	}
}

// warnOfPaths finds rules that count by endpoint although they match only one, and rules whose limit a client can
// escape by making up paths.
func (d *document) warnOfPaths() {
	named, size := false, 0
	for _, r := range d.rules {
		named = named || r.endpoint != nil
		size += r.size()
	}
	for _, r := range d.rules {
		if r.countsBy("endpoint") {
			const advice = "`endpoint` in `by` changes nothing: %s; leave it out, or write `path` to count each path by itself"
			if r.Match.Endpoint != "" || r.Match.EndpointRegex != "" {
				d.warnf(r.path()+".by", advice, "it stands for the rule's own `match`, which is the same for all of its requests")
			} else if !named {
				d.warnf(r.path()+".by", advice, "it stands for the endpoints of rules, and no rule has one")
			}
		}
		if !r.countsByPath() || r.Shadow {
			continue
		}
		if !d.budget.Spend(len(d.rules)*r.size() + size) {
			return
		}
		behind := func(o *rule) bool {
			return !o.countsByPath() && (o.Layer == "" || o.Layer != r.Layer) && o.limitsAll(r)
		}
		if !slices.ContainsFunc(d.rules, behind) {
			d.warnf(r.path()+".by", "no rule without `path` stands behind it: a client that makes up a path for each request is not limited; add one, with what it may take of all paths together")
		}
	}
}

// leastPerRegion is the smallest number of tokens per region with which a global limit can be shared among regions.
const leastPerRegion = 16

// warnOfScopes finds global rules whose checks may be unexpectedly slow. It doesn't warn if the rule has on_partition:
// refuse, since its author knows that checks wait for the home.
func (d *document) warnOfScopes() {
	for _, r := range d.rules {
		small := slices.ContainsFunc(r.Limits, func(l weir.Limit) bool { return l.Max() < 2*leastPerRegion })
		if r.Global && (r.Strict || small) && r.OnPartition != weir.FailRefuse {
			d.warnf(r.path()+".scope", "it is too small to be shared, or strict: in other regions every check waits for its home, Envoy's rate limit service for 15 ms only if its caller sets no deadline; if that is what you want, write on_partition: refuse")
		}
		if r.Global && r.OnPartition == weir.FailLocal {
			d.warnf(r.path()+".on_partition", "while regions can't reach the home, each admits the whole limit: all together the limit times the regions; if that is too much, write on_partition: refuse")
		}
	}
}
