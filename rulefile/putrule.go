package rulefile

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"github.com/weirhq/weir"
)

// readRule parses a rule that is to have the given id. If the text has no id, the id becomes the tree's first field.
func (e *editor) readRule(id string, text []byte) (*decoder, weir.Rule, error) {
	d, err := readTree("rule", text)
	if err != nil {
		return nil, weir.Rule{}, err
	}
	var rule weir.Rule
	given, at := d.root.get("id")
	switch {
	case d.root.kind == empty:
		d.add(nowhere, "", `is empty: write at least {"limit": "100/minute"}`)
	case at >= 0 && given.value.kind == scalar && !strings.EqualFold(given.value.text, id):
		d.add(given.value.at, "id", "must be %q, or be left out: a rule keeps its id, got %q", shorten(id), shorten(given.value.text))
	default:
		if at < 0 && d.root.kind == mapping {
			first := child{name: "id", value: &node{kind: scalar, text: id, quoted: true}}
			d.root.children = slices.Insert(d.root.children, 0, first)
		}
		rule = d.rule(value{d.root, ""})
	}
	if d.any() {
		return nil, rule, d.sorted(d.src)
	}
	e.forget(rule.ID)
	maps.Copy(e.expires, d.expires)
	return d, rule, nil
}

// PutRule replaces the rule with an id in the text of a document, or appends a rule. The rule is a map of fields
// in YAML or JSON. It may leave out its id, but must not have another one. Fields whose meaning doesn't change
// stay as they are written.
func PutRule(text []byte, id string, rule []byte) ([]byte, error) {
	e, err := edit(text)
	if err != nil {
		return nil, err
	}
	rules := e.rulesField().value
	i, notThere := e.findRule(id)
	if notThere == nil {
		id = e.doc.Rules[i].ID // as it is written
	}
	d, parsed, err := e.readRule(id, rule)
	if err != nil {
		return nil, err
	}
	if notThere != nil {
		e.doc.Rules = append(e.doc.Rules, parsed)
		if rules.flow {
			e.appendItem(rules, e.flow(d.root))
		} else {
			e.appendItem(rules, e.blockRule(d, e.indent(rules.from, 2)))
		}
		return e.result()
	}
	e.doc.Rules[i] = parsed
	old := rules.children[i].value
	// Keep comments: those of the new rule if it has any, otherwise those of the old one.
	if !bytes.ContainsRune(rule, '#') {
		if e.merge(old, d.root) == nil {
			if out, err := e.result(); err == nil {
				return out, nil
			}
		}
		e.changes = nil
	}
	with := e.flow(d.root)
	if !old.flow {
		with = e.blockRule(d, e.indent(old.from, 0))
	}
	e.put(old, with)
	return e.result()
}

// blockRule formats a rule with one field per line. If the rule came like that, it keeps its own text and
// comments.
func (e *editor) blockRule(d *decoder, indent string) string {
	if d.root.flow {
		return e.block(d.root, indent)
	}
	var lines []string
	if first := d.root.children[0]; first.colon == 0 { // the text had no id
		lines = append(lines, "id: "+e.scalar(first.value.text, 0))
	}
	for _, line := range d.src.dedented(d.root.from, len(d.src.text)) {
		if line != "" && !strings.HasPrefix(line, "...") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, e.eol+indent)
}

// merge changes the fields of a map to those of another one.
func (e *editor) merge(old, m *node) error {
	was, is := old.byName(), m.byName()
	for _, f := range old.children {
		now, ok := is[f.name]
		switch {
		case !ok: // it is removed below
		case sameValue(f.value, now.value):
		case f.value.kind == mapping && now.value.kind == mapping && len(f.value.children) > 0 && len(now.value.children) > 0:
			if err := e.merge(f.value, now.value); err != nil {
				return err
			}
		case f.value.kind == scalar && now.value.kind == scalar && f.value.quoted && now.value.quoted:
			e.setText(f.value, now.value.text)
		case f.value.from > e.src.lineEnd(f.colon): // the value is on the lines below
			e.replace(f.colon, f.value.to, " "+e.flow(now.value))
		default:
			e.put(f.value, e.flow(now.value))
		}
	}
	for _, f := range m.children {
		if _, ok := was[f.name]; !ok {
			e.appendField(old, f.name, e.flow(f.value))
		}
	}
	return e.remove(old, func(i int) bool {
		_, stays := is[old.children[i].name]
		return !stays
	})
}

// sameValue reports whether two values mean the same wherever the language allows them.
func sameValue(a, b *node) bool {
	if a.kind != b.kind || len(a.children) != len(b.children) {
		return false
	}
	isNumber := func(n *node) bool { return !n.quoted && isLiteral(n.text) }
	if a.text != b.text || a.kind == scalar && isNumber(a) != isNumber(b) {
		return false
	}
	others := b.byName()
	for i, c := range a.children {
		other := b.children[i]
		if a.kind == mapping {
			other = others[c.name]
		}
		if other.value == nil || !sameValue(c.value, other.value) {
			return false
		}
	}
	return true
}

func (n *node) byName() map[string]child {
	fields := make(map[string]child, len(n.children))
	for _, f := range n.children {
		fields[f.name] = f
	}
	return fields
}
