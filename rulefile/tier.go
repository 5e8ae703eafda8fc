package rulefile

import (
	"slices"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/guess"
)

// checkTiers adds problems for tiers that don't exist, and removes their names from the document. A tier
// exists if it is listed, or if a rule has numbers for it.
func (d *decoder) checkTiers(doc *weir.Rules) {
	var names []string
	known := map[string]bool{}
	add := func(tiers []weir.Tier) {
		for _, t := range tiers {
			if !known[t.Name] {
				known[t.Name] = true
				names = append(names, t.Name)
			}
		}
	}
	add(doc.Tiers)
	top := names
	for _, r := range doc.Rules {
		add(r.Tiers)
	}
	// If the list of tiers is wrong or misspelled, a tier may be in the part that can't be read.
	broken := slices.Contains(d.misspelt, "tiers") || slices.ContainsFunc(d.list, func(p Problem) bool { return p.Path == "tiers" })
	unknown := func(path, name string, exists bool, names []string) bool {
		switch {
		case exists || name == "" || broken || d.full():
		case len(names) == 0:
			d.failAt(path, "there is no tier %q: none are listed under tiers", shorten(name))
		default:
			d.failAt(path, "there is no tier %q: write one of %s", shorten(name), listed(names)).Hint = guess.Hint(name, names)
		}
		return !exists
	}
	if unknown("default_tier", doc.DefaultTier, slices.Contains(top, doc.DefaultTier), top) {
		doc.DefaultTier = ""
	}
	doc.Keys = slices.DeleteFunc(doc.Keys, func(k weir.KeyTier) bool { return unknown(join("keys", k.Pattern), k.Tier, known[k.Tier], names) })
	for i := range doc.Rules {
		if r := &doc.Rules[i]; r.Match.APIKeyPattern == "" && unknown(index("rules", i)+".tier", r.Tier, known[r.Tier], names) {
			r.Tier = ""
		}
	}
}

// warnOfTiers warns of rules with numbers for a tier that isn't listed, if its name resembles one that is.
func (d *decoder) warnOfTiers(doc *weir.Rules) {
	var names []string
	for _, t := range doc.Tiers {
		names = append(names, t.Name)
	}
	for i, r := range doc.Rules {
		for _, t := range r.Tiers {
			if slices.Contains(names, t.Name) {
				continue
			}
			if hint := guess.Hint(t.Name, names); hint != "" {
				d.failAt(join(index("rules", i)+".tiers", t.Name), "the tier %q is not listed under tiers", shorten(t.Name)).Hint = hint
			}
		}
	}
}
