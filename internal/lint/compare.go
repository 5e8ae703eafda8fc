package lint

import (
	"slices"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/private"
)

// Move says that the tier of keys that match a pattern has changed.
type Move struct{ Pattern, From, To string }

// Moved returns the patterns of the old rules whose verified keys have another tier under the new rules. It compares
// only the patterns. If there are very many patterns, it looks only at the first ones.
func Moved(oldSet, newSet *weir.RuleSet) (moved []Move) {
	old, new := open(oldSet), open(newSet)
	for i, k := range old.Keys {
		// Look the pattern up as if it were a key. Its asterisk then counts as an ordinary character, which only another
		// pattern's asterisk matches.
		if old.keys.FirstWithin(k.Pattern, int32(i), &new.budget) >= 0 {
			continue // an earlier pattern matches all keys of this one
		}
		to := new.DefaultTier
		if j := new.keys.FirstWithin(k.Pattern, int32(len(new.Keys)), &new.budget); j >= 0 {
			to = new.Keys[j].Tier
		}
		if new.budget < 0 {
			break
		}
		if to != k.Tier {
			moved = append(moved, Move{k.Pattern, k.Tier, to})
		}
	}
	return moved
}

// Dropped returns the indexes of the old rules that limited requests which no new rule limits. It compares only
// conditions. If several such rules match the same requests, it returns the one that matches the most. all is false if
// there were too many rules to compare.
func Dropped(oldSet, newSet *weir.RuleSet) (rules []int, all bool) {
	d := open(newSet)
	return d.dropped(open(oldSet)), d.budget >= 0
}

func (d *document) dropped(old *document) (widest []int) {
	// Most old rules still exist, or are covered by a rule without conditions. These cases are cheap, so try them
	// first.
	byID, wide, size := make(map[string]*rule, len(d.rules)), []*rule{}, 0
	for _, r := range d.rules {
		byID[r.ID] = r
		if size += r.size(); r.Match == (weir.Match{}) {
			wide = append(wide, r)
		}
	}
	var dropped []*rule
	for _, r := range old.rules {
		limitsIt := func(o *rule) bool { return o.limitsAll(r) }
		kept := r.Shadow || private.Borrows(r.Rule) || byID[r.ID] != nil && limitsIt(byID[r.ID]) ||
			slices.ContainsFunc(wide, func(o *rule) bool { return d.budget.Spend(o.size()+r.size()) && limitsIt(o) })
		if kept {
			continue
		}
		if !d.budget.Spend(len(d.rules)*r.size() + size) {
			break
		}
		if !slices.ContainsFunc(d.rules, limitsIt) {
			dropped = append(dropped, r)
		}
	}
	for _, r := range dropped {
		wider := func(o *rule) bool { return o.limitsAll(r) && (o.index < r.index || !r.limitsAll(o)) }
		if !d.budget.Spend(len(dropped)*2*r.size()) || !slices.ContainsFunc(dropped, wider) {
			widest = append(widest, r.index)
		}
	}
	return widest
}

// limitsAll reports whether the rule limits every request that rule o limits. A rule that counts an amount doesn't limit
// requests without it.
func (r *rule) limitsAll(o *rule) bool {
	if r.Amount != "" && r.Default == 0 && (r.Amount != o.Amount || o.Default > 0) {
		return false
	}
	return !r.Shadow && r.covers(o) && (r.Missing != weir.MissingSkip || o.Missing == weir.MissingSkip && slices.Equal(r.by, o.by))
}
