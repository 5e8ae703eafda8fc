package admin

import (
	"cmp"
	"reflect"
	"strconv"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/shown"
	"github.com/weirhq/weir/rulefile"
)

// numbersText is what an override is set to.
func numbersText(n rulefile.Numbers) string {
	burst := "a burst of " + strconv.FormatInt(n.Capacity, 10)
	switch {
	case n.Limit == "":
		return burst
	case n.Capacity > 0:
		return n.Limit + " with " + burst
	}
	return n.Limit
}

// describe says what was done to a document, as somebody would in its history. Keys are masked.
func describe(old, new *weir.Rules) string {
	var d description
	compare(&d, "rule", old.Rules, new.Rules, func(r weir.Rule) string { return r.ID })
	compare(&d, "tier", old.Tiers, new.Tiers, func(t weir.Tier) string { return t.Name })
	sum := func(s weir.Sum) string { return s.Name }
	compare(&d, "price", old.Prices, new.Prices, sum)
	compare(&d, "weight", old.Weights, new.Weights, sum)
	d.lists("block", "unblock", old.Deny, new.Deny)
	d.lists("allow", "no longer allow", old.Allow, new.Allow)
	if len(d.parts) == 0 && !reflect.DeepEqual(old.Prices, new.Prices) {
		d.parts = append(d.parts, "change the order of prices")
	}
	if !reflect.DeepEqual(old.Keys, new.Keys) || old.DefaultTier != new.DefaultTier {
		d.parts = append(d.parts, "change who is in which tier")
	}
	return cmp.Or(strings.Join(d.parts, "; "), "change nothing but the text")
}

type description struct{ parts []string }

// compare tells of things with a name that were added, changed and deleted.
func compare[T any](d *description, what string, old, new []T, name func(T) string) {
	was := make(map[string]T, len(old))
	for _, v := range old {
		was[name(v)] = v
	}
	var added, changed, deleted []string
	for _, v := range new {
		before, there := was[name(v)]
		delete(was, name(v))
		switch {
		case !there:
			added = append(added, name(v))
		case !reflect.DeepEqual(before, v):
			changed = append(changed, name(v))
		}
	}
	for _, v := range old {
		if _, gone := was[name(v)]; gone {
			deleted = append(deleted, name(v))
		}
	}
	d.add("add "+what, added)
	d.add("change "+what, changed)
	d.add("delete "+what, deleted)
}

// lists tells of entries that were added to a list, and taken off.
func (d *description) lists(put, off string, old, new []string) {
	d.add(put, without(new, old))
	d.add(off, without(old, new))
}

// without are the entries that others don't have, masked.
func without(entries, others []string) (out []string) {
	known := make(map[string]bool, len(others))
	for _, e := range others {
		known[e] = true
	}
	for _, e := range entries {
		if !known[e] {
			out = append(out, shown.Entry(e))
		}
	}
	return out
}

// mostNames is how many things one part names.
const mostNames = 3

func (d *description) add(what string, names []string) {
	if len(names) == 0 {
		return
	}
	text := what + " " + strings.Join(names[:min(len(names), mostNames)], ", ")
	if more := len(names) - mostNames; more > 0 {
		text += " and " + strconv.Itoa(more) + " more"
	}
	d.parts = append(d.parts, text)
}
