package weir

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/counter"
)

// compileNumbers makes a rule's policies. For a request, an API key's override takes precedence over the numbers of its tier,
// and these over the rule's own.
func (rs *RuleSet) compileNumbers(r *rule, path, scope string, bad *problems) {
	d := r.definition(Limit{})
	if d.Scope = scope; r.Split < 2 || r.Split > maxSplit {
		d.Split = 0
	}
	candidate := d
	candidate.Candidate, candidate.Shadow, candidate.Book, candidate.CountRefused = true, true, false, false
	candidate.Scope += " candidate"
	if abuse := cmp.Or(r.Abuse, rs.doc.Abuse); abuse != nil && *abuse != (counter.Abuse{}) {
		rs.abuse = true
		if !r.Shadow && !r.Book {
			d.Abuse = abuse
		}
	}
	r.ByTier, r.ByKey = map[string][]*counter.Policy{}, map[string][]*counter.Policy{}
	if len(r.Limits) > 0 {
		r.Base = r.policies(d, r.Limits, path, bad)
	} else if r.Algorithm != Concurrency { // a tier's limits are rates, which slots don't have
		for _, t := range rs.doc.Tiers {
			limits := slices.Clone(t.Limits)
			for i := range limits {
				if r.Algorithm > LeakyQueue { // every algorithm can use the tier's limit, but only buckets its burst
					limits[i].Burst, limits[i].Refill = 0, 0
				}
			}
			var found problems
			r.ByTier[t.Name] = r.policies(d, limits, path, &found)
			for _, p := range found {
				bad.when(true, p.Path, "with the numbers of tier %q: %s", t.Name, p.Text)
			}
		}
		r.Base = r.ByTier[rs.defaultTier]
	}
	for _, t := range r.Tiers {
		bad.when(len(t.Limits) == 0, path+".tiers."+t.Name, needsLimit)
		r.ByTier[t.Name] = r.policies(d, t.Limits, path+".tiers."+t.Name, bad)
	}
	bad.when(len(r.Override) > 0 && !slices.Contains(r.dimensions(), "api_key"), path+".override", "%s", keyOverride(scope))
	for _, key := range slices.Sorted(maps.Keys(r.Override)) {
		path, limits := path+".override."+key, r.Override[key]
		bad.when(len(limits) == 0, path, needsLimit)
		bad.when(key == "" || strings.Contains(key, "*"), path, "must be a whole API key: overrides take no patterns")
		r.ByKey[key] = r.policies(d, limits, path, bad)
	}
	r.Candidates = r.policies(candidate, r.Candidate, path+".candidate", bad)
	if r.Base == nil && (r.Tier == "" || r.Match.APIKeyPattern != "" || r.ByTier[r.Tier] == nil) {
		slots := r.Algorithm == Concurrency
		bad.when(slots, path, "needs a limit: how many requests may be in flight, such as 20")
		bad.when(!slots, path, `has no numbers: give it a limit such as "100/minute", or list tiers to take them from`)
	}
}

// policies makes a policy of each limit. A request that gets these numbers is charged to all of them.
func (r *rule) policies(d counter.Definition, limits []Limit, path string, bad *problems) []*counter.Policy {
	out := make([]*counter.Policy, 0, len(limits))
	r.checkCalendar(limits, path, bad)
	for i, l := range limits {
		path := limitPath(path, i, len(limits))
		if l.Algorithm != r.Algorithm && l.Algorithm != 0 {
			bad.when(true, path+".algorithm", "this limit is a %s, and its rule a %s, by which all of a rule's limits count: "+
				"set the rule's, and leave the limit's out", l.Algorithm, r.Algorithm)
			continue
		}
		l = r.fit(l)
		if d.Limit, d.Name = l, r.ID; len(limits) > 1 {
			d.Name += "-" + l.Period()
		}
		p, err := counter.Define(d)
		if err != nil {
			bad.addErr(path, err)
			continue
		}
		usual := counter.Amount(times(r.Default, r.cost))
		bad.when(!r.Book && r.Amount == "" && r.cost > l.Max(), path,
			"refuses everything: a request costs %d and at most %d fit", r.cost, l.Max())
		bad.when(!r.Book && r.Amount != "" && usual > l.Capacity(), path,
			"refuses every request that lacks %s: it is charged %s, and at most %s fit", r.Amount, usual, l.Capacity())
		twice := slices.ContainsFunc(out, func(q *counter.Policy) bool { return q.Name == d.Name })
		bad.when(twice, path, "the rule has two limits over %s: keep the lower one", l.Period())
		out = append(out, p)
	}
	return out
}

// keyOverride says what to write instead of an override in a rule that doesn't count by API key. Overrides are looked up by API
// key only, so `override: {acme: …}` would never apply to the org acme.
func keyOverride(by string) string {
	counts := "counts by " + strings.ReplaceAll(by, ",", ", ")
	if by == "" {
		counts = "has one counter for all"
	}
	return "an override names an API key, and this rule " + counts + ": write `tiers: {NAME: 5000/minute}` instead, " +
		"for a tier that requests carry or that `keys` gives them, or put `api_key` into `by`"
}

// fit completes a limit with the settings that its rule has for all limits. A calendar limit is a fixed window unless the rule
// names another algorithm.
func (r *rule) fit(l Limit) Limit {
	l.Algorithm, l.Decimal, l.MaxDelay = r.Algorithm, r.Amount != "", cmp.Or(l.MaxDelay, r.MaxDelay)
	if unit := r.unit(l); unit != counter.NoUnit {
		// Keep only what matters for this unit: other fields, or a name for UTC, would change the counter's ID.
		l.Calendar = counter.Calendar{Unit: unit, Zone: r.Calendar.Zone}
		switch unit {
		case counter.Month:
			l.Calendar.Day = r.Calendar.Day
		case counter.Week:
			l.Calendar.Weekday = r.Calendar.Weekday
		}
		if l.Calendar.Zone == "UTC" {
			l.Calendar.Zone = ""
		}
		if l.Algorithm == TokenBucket && l.Burst == 0 && l.Refill == 0 {
			l.Algorithm = FixedWindow
		}
	}
	switch l.Algorithm {
	case Concurrency:
		l.Window = cmp.Or(l.Window, r.SlotTTL, 30*time.Second)
	case LeakyQueue:
		l.MaxDelay = cmp.Or(l.MaxDelay, 30*time.Second)
	}
	return l
}

// unit returns the calendar unit of a limit under the rule's calendar, or NoUnit. A month is always a calendar month.
func (r *rule) unit(l Limit) counter.CalendarUnit {
	switch {
	case l.Calendar.Unit != counter.NoUnit || r.Calendar == (counter.Calendar{}):
		return l.Calendar.Unit
	case l.Window == 24*time.Hour:
		return counter.Day
	case l.Window == 7*24*time.Hour:
		return counter.Week
	}
	return counter.NoUnit
}

// checkCalendar reports a calendar that has no effect on any of the rule's limits.
func (r *rule) checkCalendar(limits []Limit, path string, bad *problems) {
	if r.Calendar == (counter.Calendar{}) || len(limits) == 0 {
		return
	}
	units := map[counter.CalendarUnit]bool{}
	for _, l := range limits {
		units[r.unit(l)] = true
	}
	none := len(units) == 1 && units[counter.NoUnit]
	first := limits[0]
	first.Algorithm = r.Algorithm
	bad.when(none, path+".calendar",
		"is for limits over a day, a week or a month, such as 50/month, and %s is over none of them", first)
	bad.when(!none && r.Calendar.Day != 0 && !units[counter.Month], path+".calendar.day",
		"is the day on which months begin, and %s isn't over one", first)
}
