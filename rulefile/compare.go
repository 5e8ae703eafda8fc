package rulefile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/lint"
	"github.com/weirhq/weir/internal/shown"
)

// Compare returns what a change from one document to another probably does by mistake: limits that are cut by
// more than half, and requests that no rule limits anymore. Each problem has its place in the new document,
// and a suggestion as its hint. Both files must come from [Parse].
func Compare(old, new *File) []Problem {
	c := &comparison{
		decoder: new.report(), old: old, new: new,
		before: byTier(old.Rules.Tiers), after: byTier(new.Rules.Tiers),
	}
	c.tiers()
	c.prices()
	was := byID(&old.Rules)
	for i := range new.Rules.Rules {
		r := &new.Rules.Rules[i]
		if j, ok := was[strings.ToLower(r.ID)]; ok && !r.Shadow && !old.Rules.Rules[j].Shadow {
			c.rule(&old.Rules.Rules[j], r, index("rules", i))
		}
	}
	c.dropped()
	return c.sorted(c.src)
}

type comparison struct {
	*decoder // of the new file
	old, new *File
	// before and after are the limits of the old and new tiers, by name.
	before, after map[string][]weir.Limit
}

// once adds a problem at a path, unless the path has one.
func (c *comparison) once(path, hint, format string, args ...any) {
	if !slices.ContainsFunc(c.list, func(p Problem) bool { return p.Path == path }) {
		c.failAt(path, format, args...).Hint = hint
	}
}

// byID maps the ids of rules to their indexes. Ids are unique regardless of case.
func byID(doc *weir.Rules) map[string]int {
	numbers := make(map[string]int, len(doc.Rules))
	for i, r := range doc.Rules {
		numbers[strings.ToLower(r.ID)] = i
	}
	return numbers
}

func byTier(tiers []weir.Tier) map[string][]weir.Limit {
	limits := make(map[string][]weir.Limit, len(tiers))
	for _, t := range tiers {
		limits[t.Name] = t.Limits
	}
	return limits
}

func defaultTier(doc *weir.Rules) string {
	if doc.DefaultTier == "" && len(doc.Tiers) > 0 {
		return doc.Tiers[0].Name
	}
	return doc.DefaultTier
}

// tiers compares the limits of tiers in both documents, and the tiers of keys.
func (c *comparison) tiers() {
	old, new := &c.old.Rules, &c.new.Rules
	for _, t := range new.Tiers {
		c.limits(c.before[t.Name], t.Limits, join("tiers", t.Name))
	}
	if was, is := defaultTier(old), defaultTier(new); was != is {
		if x := compareLimits(c.before[was], c.after[is]); x != nil {
			path := "default_tier"
			if new.DefaultTier == "" {
				path = join("tiers", is)
			}
			c.once(path, "write default_tier: "+was, "requests without a tier were in %q and are in %q now, which cuts them from %s to %s", was, is, x.was, x.is)
		}
	}
	gone := 0
	for _, k := range lint.Moved(c.old.Set, c.new.Set) {
		x := compareLimits(c.before[k.From], c.after[k.To])
		path := join("keys", k.Pattern)
		switch {
		case x == nil:
		case c.written(path):
			c.once(path, "name the keys that are meant", "these keys were in %q and are in %q now, which cuts them from %s to %s", k.From, k.To, x.was, x.is)
		case gone < listedLosses: // the pattern may be a key, and isn't in the new document
			gone++
			c.failAt("keys", "%s moves from %q to %q, since no pattern matches it as before, which cuts it from %s to %s", shown.Entry(k.Pattern), k.From, k.To, x.was, x.is).
				Hint = "keep the pattern, or write the one that its keys have now"
		}
	}
}

// rule compares what a rule counts, and by what. If it counts the same, rule compares the limits, too.
func (c *comparison) rule(was, is *weir.Rule, path string) {
	if was.Amount == is.Amount {
		c.numbers(was, is, path)
	}
	if a, b := max(was.Cost, 1), max(is.Cost, 1); b > 2*a {
		c.once(path+".cost", fmt.Sprintf("raise the limit with it, or write cost: %d", a), "a request costs %d and did cost %d, so that the limit admits less than half of what it did", b, a)
	}
	if a, b := was.Default, is.Default; was.Amount == is.Amount && a > 0 && b/2 > a {
		c.once(path+".default", fmt.Sprintf("write default: %s, or let requests say how many %s they take", a, is.Amount), "a request that lacks %s is charged %s and was charged %s", is.Amount, b, a)
	}
	for _, p := range []struct {
		field          string
		was, is, usual int
	}{{"ipv4_prefix", was.IPv4Prefix, is.IPv4Prefix, 32}, {"ipv6_prefix", was.IPv6Prefix, is.IPv6Prefix, 64}} {
		if a, b := cmp.Or(p.was, p.usual), cmp.Or(p.is, p.usual); b < a {
			c.once(path+"."+p.field, "raise the limit with it, or add a second rule with the wider network", "all clients of a /%d share one limit now, and each /%d had its own", b, a)
		}
	}
	forAll := func(r *weir.Rule) bool { return r.By != nil && len(r.By) == 0 }
	if forAll(is) && !forAll(was) {
		c.once(path+".by", "name what to count by, such as [api_key]", "all clients share one limit now, and each had its own")
	}
}

// prices finds amounts that count for more than twice as much as before.
func (c *comparison) prices() {
	parts := func(doc *weir.Rules, f func(path string, each int64)) {
		for of, sums := range map[string][]weir.Sum{"prices": doc.Prices, "weights": doc.Weights} {
			for _, s := range sums {
				for _, w := range s.Parts {
					f(join(join(of, s.Name), w.Amount), w.Each)
				}
			}
		}
	}
	was := map[string]int64{}
	parts(&c.old.Rules, func(path string, each int64) { was[path] = each })
	parts(&c.new.Rules, func(path string, each int64) {
		if before := was[path]; before > 0 && each/2 > before {
			c.once(path, "is it meant for 1K, 1M or 1B? Limits can be raised with it", "counts for more than twice what it did, so that limits admit less than half")
		}
	})
}

// numbers compares a rule's own limits, its limits for tiers, and its overrides.
func (c *comparison) numbers(was, is *weir.Rule, path string) {
	if len(is.Limits) > 0 && len(was.Limits) > 0 {
		c.limits(was.Limits, is.Limits, c.ownNumbersPath(path))
	} else if len(is.Limits) > 0 && is.Descriptor == nil { // before, it had the limits of the tiers
		for _, t := range c.old.Rules.Tiers {
			c.limits(t.Limits, is.Limits, c.ownNumbersPath(path))
		}
	}
	tiers, kept := byTier(was.Tiers), byTier(is.Tiers)
	for _, t := range is.Tiers {
		c.limits(first(tiers[t.Name], was.Limits, c.before[t.Name]), t.Limits, join(path+".tiers", t.Name))
	}
	for _, t := range was.Tiers {
		if kept[t.Name] != nil {
			continue
		}
		if x := compareLimits(t.Limits, first(is.Limits, c.after[t.Name])); x != nil {
			c.once(join(path+".tiers", t.Name), fmt.Sprintf("keep tiers: {%s: %s}", t.Name, x.was), "tier %q no longer has numbers of its own here, which cuts it from %s to %s", t.Name, x.was, x.is)
		}
	}
	for key, limits := range is.Override {
		c.limits(was.Override[key], limits, join(path+".override", key))
	}
}

// first returns the first limits that aren't empty.
func first(limits ...[]weir.Limit) []weir.Limit {
	for _, l := range limits {
		if len(l) > 0 {
			return l
		}
	}
	return nil
}

// limits adds a problem if limits were cut. The path is that of the new limits.
func (c *comparison) limits(was, is []weir.Limit, path string) {
	x := compareLimits(was, is)
	if x == nil {
		return
	}
	if len(is) > 1 {
		list := strings.TrimSuffix(path, ".limits") + ".limits"
		path = index(list, x.at)
	}
	// Point to the number itself. A rule's burst is a field beside its limit.
	names := []string{".limit", ".refill_rate", ".capacity"}
	if x.field == "burst" {
		names = []string{".burst", ".capacity", ".limit"}
		if rule, ok := strings.CutSuffix(path, ".limit"); ok && c.written(rule+".burst") {
			path = rule
		}
	}
	for _, name := range names {
		if c.written(path + name) {
			path += name
			break
		}
	}
	c.once(path, x.hint, "the %s is cut by more than half, from %s to %s", x.field, x.was, x.is)
}

func (c *comparison) written(path string) bool { _, ok := c.places[path]; return ok }

// limitCut describes a limit that was cut by more than half.
type limitCut struct {
	at      int    // the index of the new limit
	field   string // limit or burst
	was, is string
	hint    string
}

// limitName writes a limit the way people do.
func limitName(l weir.Limit) string {
	if l.Refill > 0 {
		return fmt.Sprintf("%s a second", rateText(l.Refill))
	}
	return l.String()
}

// compareLimits returns a limit that was cut by more than half, or nil. It compares limits over the same
// window. If there are none, it compares the slowest old one with the slowest new one.
func compareLimits(was, is []weir.Limit) *limitCut {
	if len(was) == 0 || len(is) == 0 || (was[0].Algorithm == weir.Concurrency) != (is[0].Algorithm == weir.Concurrency) {
		return nil
	}
	paired := false
	for i, l := range is {
		j := slices.IndexFunc(was, func(o weir.Limit) bool { return windowName(o) == windowName(l) })
		if len(was) == 1 && len(is) == 1 {
			j = 0
		}
		if j < 0 {
			continue
		}
		paired = true
		if x := compareLimit(was[j], l, i); x != nil {
			return x
		}
	}
	if paired {
		return nil
	}
	slower := func(a, b weir.Limit) int { return cmp.Compare(lint.PerSecond(a), lint.PerSecond(b)) }
	slowest := slices.MinFunc(is, slower)
	return compareLimit(slices.MinFunc(was, slower), slowest, slices.Index(is, slowest))
}

func compareLimit(was, is weir.Limit, at int) *limitCut {
	switch {
	case 2*lint.PerSecond(is) < lint.PerSecond(was):
		hint := fmt.Sprintf("%s would be half of it, and a `candidate` shows whom a limit would refuse", halfOf(was))
		if is.Amount() == was.Amount() && is.Refill == was.Refill {
			hint = fmt.Sprintf("did you mean %q?", was)
		} else if was.Refill > 0 {
			hint = "a `candidate` shows whom a limit would refuse"
		}
		return &limitCut{at, "limit", limitName(was), limitName(is), hint}
	case 2*is.Capacity() < was.Capacity():
		half := was
		half.Count, half.Fraction = wholeAndRest(was.Capacity())
		return &limitCut{at, "burst", was.Capacity().String(), is.Capacity().String(), fmt.Sprintf("%s would be half of it", halfOf(half).Amount())}
	}
	return nil
}

// halfOf returns half of a limit, rounded up: to whole tokens, unless the limit has a fraction.
func halfOf(l weir.Limit) weir.Limit {
	if l.Fraction == 0 && l.Count > 1 {
		l.Count = (l.Count + 1) / 2
	} else {
		l.Count, l.Fraction = wholeAndRest((l.Amount() + 1) / 2)
	}
	return l
}

// dropped finds rules that are gone or match less than before, if no other rule limits the same requests.
func (c *comparison) dropped() {
	is := byID(&c.new.Rules)
	dropped, all := lint.Dropped(c.old.Set, c.new.Set)
	if !all {
		c.failAt("rules", "too many rules have changed to tell whether all requests that were limited still are").
			Hint = "change fewer at a time, or add a rule without `match`"
	}
	for _, i := range dropped {
		id := strings.ToLower(c.old.Rules.Rules[i].ID)
		j, there := is[id]
		switch {
		case !there:
			c.failAt("rules", "the rule %q is gone, and no other limits the requests that it was for", id).
				Hint = "keep it, or add a rule without `match`"
		case c.new.Rules.Rules[j].Shadow:
			c.once(index("rules", j)+".shadow", "add a rule without `match`", "the rule refuses nobody now, and no other limits the requests that it is for")
		default:
			c.once(index("rules", j), "widen it again, or add a rule without `match`", "the rule is for less than it was, and no other limits the rest")
		}
	}
}
