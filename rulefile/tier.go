package rulefile

import (
	"slices"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/guess"
)

// tierName reads the name of a tier. Whether that tier exists is checked at the end of the document.
func (d *decoder) tierName(v value) string {
	name := d.text(v)
	if name != "" {
		d.tierUses = append(d.tierUses, v)
	}
	return name
}

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
	listed := names
	for _, r := range doc.Rules {
		add(r.Tiers)
	}
	broken := d.brokenTiers()
	for _, use := range d.tierUses {
		among, there := names, known[use.text]
		if use.path == "default_tier" {
			among, there = listed, slices.Contains(listed, use.text)
		}
		if !there && !broken && !d.full() { // if broken, it may be in the part that can't be read
			d.unknownTier(use, among)
		}
	}
	if !slices.Contains(listed, doc.DefaultTier) {
		doc.DefaultTier = ""
	}
	doc.Keys = slices.DeleteFunc(doc.Keys, func(k weir.KeyTier) bool { return !known[k.Tier] })
	for i := range doc.Rules {
		if r := &doc.Rules[i]; r.Match.APIKeyPattern == "" && !known[r.Tier] {
			r.Tier = ""
		}
	}
	d.warnOfTiers(doc, listed)
}

func (d *decoder) unknownTier(use value, names []string) {
	if len(names) == 0 {
		d.fail(use, "there is no tier %q: none are listed under tiers", shorten(use.text))
		return
	}
	d.fail(use, "there is no tier %q: write one of %s", shorten(use.text), listed(names)).Hint = guess.Hint(use.text, names)
}

// warnOfTiers warns of rules with numbers for a tier that isn't listed, if its name resembles one that is.
func (d *decoder) warnOfTiers(doc *weir.Rules, listed []string) {
	if len(listed) > guess.MaxCandidates {
		return
	}
	for i, r := range doc.Rules {
		for _, t := range r.Tiers {
			if slices.Contains(listed, t.Name) {
				continue
			}
			if hint := guess.Hint(t.Name, listed); hint != "" {
				path := join(index("rules", i)+".tiers", t.Name)
				d.warned.add(d.find(path), path, "the tier %q is not listed under tiers", shorten(t.Name)).Hint = hint
			}
		}
	}
}

// brokenTiers reports whether the list of tiers itself is wrong or misspelled, so that nobody can say which
// tiers exist.
func (d *decoder) brokenTiers() bool {
	return slices.Contains(d.misspelt, "tiers") ||
		slices.ContainsFunc(d.list, func(p located) bool { return p.Path == "tiers" })
}
