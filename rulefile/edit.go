package rulefile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/guess"
	"github.com/weirhq/weir/internal/shown"
)

// ErrNotFound is the error of edits when the tier, the rule or the override doesn't exist.
var ErrNotFound = errors.New("not found")

// notFound is an error that names what doesn't exist, and what does.
type notFound struct{ text string }

func (e *notFound) Error() string        { return e.text }
func (e *notFound) Is(target error) bool { return target == ErrNotFound }

func missing(what, name string, names []string) error {
	text := fmt.Sprintf("there is no %s %q", what, shown.Name(name))
	if len(names) == 0 {
		return &notFound{text + ": there are none"}
	}
	text += fmt.Sprintf(": the %ss are %s", what, listed(names))
	if hint := guess.Hint(name, names); hint != "" {
		text += "; " + hint
	}
	return &notFound{text}
}

// Numbers are the new limit of a tier or an override.
type Numbers struct {
	// Limit is "500/minute", or "500" to keep the window. For an amount it may be "12.50/month", and for requests in flight it
	// is a number such as "50". "" keeps the limit.
	Limit string
	// Capacity is the burst. 0 keeps the burst.
	Capacity int64
	// Expires is when an override ends, in whole seconds. Zero means never. Tiers don't expire.
	Expires time.Time
}

// List is one of a document's two lists of keys and addresses.
type List string

// The names of the lists. [Parse] also reads "whitelist" and "blacklist".
const (
	Allowlist List = "allow"
	Denylist  List = "deny"
)

// aliases are the lists' other names. The previous version of Weir knows only these.
var aliases = map[List]string{Allowlist: "whitelist", Denylist: "blacklist"}

// listField returns a list's field, its index or -1, and the list's name in the document. If the document has neither list, the
// name is the one that nodes of the previous version can read, too, because they share the rules in Redis.
func (e *editor) listField(list List) (f child, at int, name string) {
	hasAlias := func(f child) bool { return aliases[List(f.name)] != "" }
	name = e.listNames[list]
	if f, at = e.root.get(name); at < 0 && !slices.ContainsFunc(e.root.children, hasAlias) {
		name = aliases[list]
	}
	return f, at, name
}

// findRule returns the index of the rule with an id.
func (e *editor) findRule(id string) (int, error) {
	ids := make([]string, len(e.doc.Rules))
	for i, r := range e.doc.Rules {
		if ids[i] = r.ID; strings.EqualFold(r.ID, id) {
			return i, nil
		}
	}
	return -1, missing("rule", id, ids)
}

// edited parses a text, makes a change, and returns the new text.
func edited(text []byte, change func(e *editor) error) ([]byte, error) {
	e, err := edit(text)
	if err != nil {
		return nil, err
	}
	if err := change(e); err != nil {
		return nil, err
	}
	return e.result()
}

// editedRule makes a change to the rule with an id. The change gets the rule's index, the rule itself, and its node in the
// text.
func editedRule(text []byte, id string, change func(e *editor, i int, r *weir.Rule, item *node) error) ([]byte, error) {
	return edited(text, func(e *editor) error {
		i, err := e.findRule(id)
		if err != nil {
			return err
		}
		return change(e, i, &e.doc.Rules[i], e.ruleNode(i))
	})
}

func (e *editor) rulesField() child {
	f, _ := e.root.get("rules")
	return f
}

func (e *editor) ruleNode(i int) *node { return e.rulesField().value.children[i].value }

// SetTier changes the numbers of a tier in the text of a document: where the tier is listed, and in every rule that is for the
// tier and has numbers of its own. As with all edits, the rest of the text stays as it is, byte for byte. The error is
// [Problems] if the old or the new text isn't a valid document.
func SetTier(text []byte, tier string, n Numbers) ([]byte, error) {
	return edited(text, func(e *editor) error {
		if !n.Expires.IsZero() {
			return errors.New("a tier doesn't expire: leave the time out, or set an override for a key")
		}
		c, err := n.parse()
		if err != nil {
			return err
		}
		found := false
		for i := range e.doc.Tiers {
			if t := &e.doc.Tiers[i]; t.Name == tier {
				found = true
				tiers, _ := e.root.get("tiers")
				entry, _ := tiers.value.get(tier)
				if t.Limits, err = e.setNumbers(entry.value, t.Limits, c, false); err != nil {
					return fmt.Errorf("the tier %q %w", tier, err)
				}
			}
		}
		for i := range e.doc.Rules {
			r := &e.doc.Rules[i]
			if r.Tier != tier || !tierNumbers(r) {
				continue
			}
			found = true
			own := c
			if r.Algorithm > weir.LeakyQueue {
				own.Burst = 0 // only buckets have a burst; the tier's limit applies to all algorithms
			}
			if r.Limits, err = e.setIn(e.ruleNode(i), r.Limits, own); err != nil {
				return fmt.Errorf("the rule %q, which is for the tier, %w", r.ID, err)
			}
		}
		if !found {
			return e.missingTier(tier)
		}
		return nil
	})
}

// tierNumbers reports whether a rule has numbers of its own that limit a client's requests. Rules that count amounts, slots or
// addresses have limits of another kind, which a tier's limit doesn't replace.
func tierNumbers(r *weir.Rule) bool {
	return len(r.Limits) > 0 && r.Amount == "" && r.Algorithm != weir.Concurrency && !slices.Equal(r.By, []string{"ip"})
}

func (e *editor) missingTier(tier string) error {
	var names []string
	for _, t := range e.doc.Tiers {
		names = append(names, t.Name)
	}
	for i := range e.doc.Rules {
		if r := &e.doc.Rules[i]; r.Tier != "" && tierNumbers(r) && !slices.Contains(names, r.Tier) {
			names = append(names, r.Tier)
		}
	}
	return missing("tier", tier, names)
}

// DeleteRule removes a rule from the text of a document.
func DeleteRule(text []byte, id string) ([]byte, error) {
	return editedRule(text, id, func(e *editor, i int, r *weir.Rule, _ *node) error {
		e.forget(r.ID)
		gone := make([]bool, len(e.doc.Rules))
		gone[i] = true
		if e.doc.Rules = slices.Delete(e.doc.Rules, i, i+1); len(e.doc.Rules) == 0 {
			e.doc.Rules = nil
		}
		return e.setItems(e.rulesField(), gone, nil)
	})
}

// forget removes the expiry times of a rule's overrides.
func (e *editor) forget(rule string) {
	maps.DeleteFunc(e.expires, func(id overrideID, _ time.Time) bool { return strings.EqualFold(id.rule, rule) })
}

// SetOverride gives a key its own numbers in a rule, or changes them. A limit without a window keeps the window of the numbers
// that it replaces.
func SetOverride(text []byte, rule, key string, n Numbers) ([]byte, error) {
	return editedRule(text, rule, func(e *editor, _ int, r *weir.Rule, item *node) error {
		c, err := n.parse()
		if err != nil {
			return err
		}
		if params, i := item.get("params"); i >= 0 {
			_, window := params.value.get("window")
			c.inherits = window >= 0
		}
		id := overrideID{r.ID, key}
		if delete(e.expires, id); !c.expires.IsZero() {
			e.expires[id] = c.expires
		}
		overrides, at := item.get("override")
		if at >= 0 {
			if entry, j := overrides.value.get(key); j >= 0 {
				if r.Override[key], err = e.setNumbers(entry.value, r.Override[key], c, true); err != nil {
					return fmt.Errorf("the override %w", err)
				}
				return nil
			}
		}
		l, err := c.fresh(r)
		if err != nil {
			return err
		}
		if r.Override == nil {
			r.Override = map[string][]weir.Limit{}
		}
		r.Override[key] = []weir.Limit{l}
		value := e.limitText(l, c.expires)
		switch {
		case at >= 0:
			e.appendField(overrides.value, key, value)
		case item.flow:
			e.appendField(item, "override", e.flowMap(pair{key, value}))
		default:
			e.appendField(item, "override", e.eol+e.indent(item.from, 2)+e.scalar(key, 0)+": "+value)
		}
		return nil
	})
}

// DeleteOverride removes a key's own numbers from a rule.
func DeleteOverride(text []byte, rule, key string) ([]byte, error) {
	return editedRule(text, rule, func(e *editor, _ int, r *weir.Rule, item *node) error {
		if _, ok := r.Override[key]; !ok {
			// Keys are secrets: other people's aren't listed.
			return &notFound{fmt.Sprintf("the rule %q has no override for this key", r.ID)}
		}
		delete(e.expires, overrideID{r.ID, key})
		overrides, at := item.get("override")
		if len(r.Override) > 1 {
			delete(r.Override, key)
			_, at = overrides.value.get(key)
			item = overrides.value
		} else {
			r.Override = nil
		}
		return e.remove(item, func(i int) bool { return i == at })
	})
}

// SetList makes one of the lists consist of these entries. Entries that stay keep their places and comments, and new ones come
// last.
func SetList(text []byte, list List, entries []string) ([]byte, error) {
	return edited(text, func(e *editor) error {
		target := &e.doc.Allow
		if list == Denylist {
			target = &e.doc.Deny
		}
		wanted := map[string]bool{} // not found in the old list yet
		for _, s := range entries {
			wanted[s] = true
		}
		var all []string
		take := func(s string) bool {
			if !wanted[s] {
				return false
			}
			delete(wanted, s) // so that a duplicate is removed
			all = append(all, s)
			return true
		}
		gone := make([]bool, len(*target))
		for i, s := range *target {
			gone[i] = !take(s)
		}
		kept := len(all)
		for _, s := range entries {
			take(s)
		}
		*target = all
		switch f, at, name := e.listField(list); {
		case at >= 0:
			return e.setItems(f, gone, all[kept:])
		case len(all) > 0:
			e.appendField(e.root, name, "["+e.scalars(all, 0)+"]")
		}
		return nil
	})
}

// setItems removes some items from a list of texts, and adds others at the end.
func (e *editor) setItems(f child, gone []bool, added []string) error {
	list := f.value
	quote := byte(0)
	if len(list.children) > 0 {
		quote = e.quoteOf(list.last().value)
	}
	if len(added) == 0 && !list.flow && !slices.Contains(gone, false) { // nothing is left on the lines below the name
		e.replace(f.colon, f.colon, " []")
		e.replace(e.src.lineEnd(f.colon), e.src.lineEnd(list.to), "")
		return nil
	}
	last := len(gone) - 1
	if list.flow && len(added) > 0 && last >= 0 && gone[last] {
		// New items are inserted behind the last item, so it can't be removed. The first new item replaces it.
		e.put(list.children[last].value, e.scalar(added[0], quote))
		gone[last], added = false, added[1:]
	}
	if last < 0 {
		e.insert(list, -1, e.scalars(added, quote))
		return nil
	}
	for _, s := range added {
		e.appendItem(list, e.scalar(s, quote))
	}
	return e.remove(list, func(i int) bool { return gone[i] })
}
