package lint

import (
	"slices"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/pattern"
	"github.com/weirhq/weir/internal/private"
)

// Move is a pattern of keys whose tier has changed.
type Move struct{ Pattern, From, To string }

// Moved returns the patterns of the old rules whose verified keys are in another tier by the new rules, as far as the patterns
// tell. If there are very many patterns, it looks at the first ones only.
func Moved(oldSet, newSet *weir.RuleSet) (moved []Move) {
	old, new, c := open(oldSet), open(newSet), pattern.Budget(maxCompared)
	for i, k := range old.Keys {
		// A pattern held against a pattern: its star is a character that only another star matches.
		if old.keys.FirstWithin(k.Pattern, int32(i), &c) >= 0 {
			continue // an earlier pattern matches all keys of this one
		}
		to := new.DefaultTier
		if j := new.keys.FirstWithin(k.Pattern, int32(len(new.Keys)), &c); j >= 0 {
			to = new.Keys[j].Tier
		}
		if c < 0 {
			break
		}
		if to != k.Tier {
			moved = append(moved, Move{k.Pattern, k.Tier, to})
		}
	}
	return moved
}

// Dropped returns the indexes of the old rules that limited requests which no new rule limits, as far as the conditions tell.
// Of several such rules for the same requests, it returns the widest. All is false if there were too many rules to compare.
func Dropped(oldSet, newSet *weir.RuleSet) (rules []int, all bool) {
	dropped, c := open(newSet).dropped(open(oldSet))
	return dropped, c >= 0
}

func (d *document) dropped(old *document) (widest []int, c pattern.Budget) {
	c = maxCompared
	// Most rules are still there, or stand before one without conditions: those are tried first.
	byID, wide, size := make(map[string]*rule, len(d.rules)), []*rule{}, 0
	for i := range d.rules {
		r := &d.rules[i]
		byID[r.ID] = r
		if size += r.size(); r.Match == (weir.Match{}) {
			wide = append(wide, r)
		}
	}
	var dropped []int
	for i := range old.rules {
		r := &old.rules[i]
		kept := r.Shadow || private.Borrows(r.Rule) || byID[r.ID] != nil && byID[r.ID].limitsAll(r)
		for j := 0; j < len(wide) && !kept && c.Spend(wide[j].size()+r.size()); j++ {
			kept = wide[j].limitsAll(r)
		}
		if kept {
			continue
		}
		if !c.Spend(len(d.rules)*r.size() + size) {
			break
		}
		for j := 0; j < len(d.rules) && !kept; j++ {
			kept = d.rules[j].limitsAll(r)
		}
		if !kept {
			dropped = append(dropped, i)
		}
	}
	for n, i := range dropped {
		r := &old.rules[i]
		if !c.Spend(len(dropped) * 2 * r.size()) {
			return append(widest, dropped[n:]...), c
		}
		if !slices.ContainsFunc(dropped, func(j int) bool {
			o := &old.rules[j]
			return o.limitsAll(r) && (j < i || !r.limitsAll(o))
		}) {
			widest = append(widest, i)
		}
	}
	return widest, c
}

// limitsAll: the rule limits whatever another one limits. One that counts an amount doesn't limit requests without it.
func (r *rule) limitsAll(o *rule) bool {
	if r.Amount != "" && r.Default == 0 && (r.Amount != o.Amount || o.Default > 0) {
		return false
	}
	return !r.Shadow && r.covers(o) && (r.Missing != weir.MissingSkip || o.Missing == weir.MissingSkip && slices.Equal(r.by, o.by))
}
