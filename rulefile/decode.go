package rulefile

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/guess"
)

// decoder turns a tree into a rule document. After a problem it goes on, so that it finds all of
// them at once.
type decoder struct {
	*problems
	src  *source
	root *node
	// doc is the decoded document, with expired overrides, too.
	doc weir.Rules
	// places maps paths to places in the text, for problems that [weir.Compile] finds.
	places map[string]int
	// hints are suggestions, by path, for names that only Compile can tell are wrong.
	hints map[string]string
	// listNames are the names that the document uses for its lists.
	listNames map[List]string
	// misspelt are paths of fields that are probably in the document under a misspelled name.
	misspelt []string
	// expires is when overrides expire, for those that do.
	expires map[overrideID]time.Time
}

// value is a node and its path. The node is nil if the document has no such value.
type value struct {
	*node
	path string
}

// entry is a field of a map whose field names are free, such as tiers.
type entry struct {
	value
	name   string
	nameAt int
}

func (d *decoder) fail(v value, format string, args ...any) *Problem {
	return d.add(v.at, v.path, format, args...)
}

// given reports whether there is a value to read. It adds a problem for a name without a value.
func (d *decoder) given(v value) bool {
	if v.node == nil {
		return false
	}
	if v.kind == empty {
		d.fail(v, "needs a value: write one, or leave the field out")
		return false
	}
	return true
}

// fieldSet describes the fields that a map can have.
type fieldSet struct {
	of    string // what has these fields, as messages call it
	names []string
	// aliases maps other names of fields to the real ones. Messages don't list them.
	aliases map[string]string
	// wrong maps names that people write by mistake to what to write instead.
	wrong map[string]string
}

// restOfNumber matches the rest of a number that was written with a comma: 000/minute.
var restOfNumber = regexp.MustCompile(`^[0-9]{3}(?:[/ ].*)?$`)

// fields returns the fields of a map by name. It adds problems for unknown fields, and for those
// that come twice.
func (d *decoder) fields(v value, set *fieldSet) map[string]value {
	found := map[string]value{}
	for _, e := range d.entries(v) {
		name := cmp.Or(set.aliases[e.name], e.name)
		if first, twice := found[name]; twice {
			d.add(e.nameAt, e.path, "is the same field as %s: write one of them", first.path)
			continue
		}
		if slices.Contains(set.names, name) {
			found[name] = e.value
			continue
		}
		if d.full() {
			continue
		}
		p := d.add(e.nameAt, e.path, "%s has no field %q", set.of, shorten(e.name))
		fields := strings.Join(set.names, ", ")
		if hint, ok := set.wrong[e.name]; ok {
			p.Hint = hint
		} else if restOfNumber.MatchString(e.name) {
			p.Hint = "a comma ends the value before it: write numbers without commas"
		} else if best := guess.Closest(e.name, slices.Concat(set.names, slices.Sorted(maps.Keys(set.aliases)))); best != "" {
			p.Hint = fmt.Sprintf("did you mean %q? The fields are %s", best, fields)
			d.misspelt = append(d.misspelt, join(v.path, best))
		} else if name, _, ok := strings.Cut(e.name, ":"); ok && slices.Contains(set.names, name) {
			p.Hint = "is a space missing behind the colon?"
			d.misspelt = append(d.misspelt, join(v.path, name))
		} else {
			p.Hint = "the fields are " + fields
		}
	}
	return found
}

// entries returns the fields of a map in their order, each name once.
func (d *decoder) entries(v value) []entry {
	if !d.given(v) {
		return nil
	}
	if v.kind != mapping {
		d.fail(v, "must be a map of fields, name: value, got %s", v.describe())
		return nil
	}
	list := make([]entry, 0, len(v.children))
	first := make(map[string]int, len(v.children))
	for _, f := range v.children {
		e := entry{value{f.value, join(v.path, f.name)}, f.name, f.at}
		if at, twice := first[f.name]; twice {
			d.add(f.at, e.path, "is written twice: the first is on line %d", d.src.line(at)+1)
			continue
		}
		first[f.name] = f.at
		d.places[e.path] = f.value.at
		list = append(list, e)
	}
	return list
}

// items returns the values of a list. The example is for the message to people who wrote something
// else.
func (d *decoder) items(v value, example string) []value {
	if !d.given(v) {
		return nil
	}
	if v.kind != sequence {
		p := d.fail(v, "must be a list such as %s, got %s", example, v.describe())
		if v.kind == scalar && len(v.text) < 40 {
			p.Hint = "write [" + v.text + "]"
		}
		return nil
	}
	list := make([]value, len(v.children))
	for i, c := range v.children {
		list[i] = value{c.value, index(v.path, i)}
		d.places[list[i].path] = c.value.at
	}
	return list
}

var documentFields = fieldSet{
	of:      "a rule file",
	names:   []string{"tiers", "default_tier", "keys", "rules", "allow", "deny", "abuse", "prices", "weights"},
	aliases: map[string]string{"whitelist": string(Allowlist), "blacklist": string(Denylist)},
	wrong: map[string]string{
		"allowlist": `write "allow"`, "denylist": `write "deny"`, "blocklist": `write "deny"`, "block": `write "deny"`,
		"limits": `limits belong to a rule: write rules: [{id: quota, limit: 100/minute}]`,
		"limit":  `a limit belongs to a rule: write rules: [{id: quota, limit: 100/minute}]`,
		"domain": theirFile, "descriptors": theirFile,
		"models": `write prices: {"gpt-*": ` + priceExample + `}`, "pricing": `write "prices"`, "costs": `write "prices"`,
		"amounts": `amounts made of others are weights: {tokens: ` + weightExample + `}; what a rule counts is its amount`,
	},
}

const theirFile = "is this a file of envoyproxy/ratelimit? weir serve --envoy-config FOLDER serves such files, and weir import envoy makes rules of them"

// smallest is the shortest useful rule file.
const smallest = "rules: [{id: quota, limit: 100/minute}]"

func (d *decoder) document(root *node) weir.Rules {
	if root.kind == empty {
		d.add(nowhere, "", "is empty: write at least %s", smallest)
		return weir.Rules{}
	}
	f := d.fields(value{root, ""}, &documentFields)
	rules, ok := f["rules"]
	switch {
	case ok && rules.kind == empty:
		d.fail(rules, "needs a list: write at least %s", smallest)
		rules = value{}
	case !ok && !d.any():
		d.add(root.at, "rules", "is missing: write at least %s", smallest)
	}
	doc := weir.Rules{
		Tiers:       d.tiers(f["tiers"], scope{shared: true}),
		DefaultTier: d.text(f["default_tier"]),
		Allow:       d.texts(f[string(Allowlist)], `["sk_internal_*", 10.0.0.0/8]`),
		Deny:        d.texts(f[string(Denylist)], `["sk_revoked_*", 203.0.113.0/24]`),
		Abuse:       d.abuse(f["abuse"]),
		Prices:      d.sums(f["prices"], "prices", `"gpt-*"`, priceExample),
		Weights:     d.sums(f["weights"], "weights", "tokens", weightExample),
	}
	for _, list := range []List{Allowlist, Denylist} {
		d.listNames[list] = cmp.Or(f[string(list)].path, string(list))
	}
	for _, name := range []string{"keys", string(Allowlist), string(Denylist)} {
		d.hide(f[name])
	}
	for _, e := range d.entries(f["keys"]) {
		if e.name == "" {
			d.add(e.nameAt, "keys", "must be a key or a pattern such as sk_prod_*, got nothing")
		}
		doc.Keys = append(doc.Keys, weir.KeyTier{Pattern: e.name, Tier: d.text(e.value)})
	}
	for _, v := range d.rules(rules) {
		doc.Rules = append(doc.Rules, d.rule(v))
	}
	d.checkTiers(&doc)
	d.checkMonths(&doc)
	return doc
}

func (d *decoder) tiers(v value, s scope) []weir.Tier {
	var tiers []weir.Tier
	for _, e := range d.entries(v) {
		if e.name == "" {
			d.add(e.nameAt, v.path, "a tier needs a name")
			continue
		}
		tiers = append(tiers, weir.Tier{Name: e.name, Limits: d.numbers(e.value, s)})
	}
	return tiers
}

// join returns the path of a field.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// index returns the path of a list item.
func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
