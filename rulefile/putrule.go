package rulefile

import (
	"bytes"
	"maps"
	"strings"

	"github.com/weirhq/weir"
)

// newRule is a rule that comes alone.
type newRule struct {
	*reading
	rule weir.Rule
	// id is written before the rest, if the rule came without one.
	id string
}

// readRule reads a rule that will have an id.
func (e *editor) readRule(id string, text []byte) (*newRule, error) {
	read, err := readTree("rule", text)
	if err != nil {
		return nil, err
	}
	r := &newRule{reading: read}
	if r.root == nil || r.root.kind == empty {
		r.add(place{}, "", `is empty: write at least {"limit": "100/minute"}`)
		return nil, r.sorted(r.src)
	}
	given, at := r.root.get("id")
	if at >= 0 && given.value.kind == scalar && !strings.EqualFold(given.value.text, id) {
		r.add(given.value.at, "id", "must be %q, or be left out: a rule keeps its id, got %q", shorten(id), shorten(given.value.text))
		return nil, r.sorted(r.src)
	}
	if at < 0 && r.root.kind == mapping {
		r.id = id
		first := field{name: "id", value: &node{kind: scalar, text: id, quoted: true}}
		r.root.fields = append([]field{first}, r.root.fields...)
	}
	r.rule = r.decoder.rule(value{r.root, ""})
	if r.any() {
		return nil, r.sorted(r.src)
	}
	e.forget(r.rule.ID)
	maps.Copy(e.expires, r.expires)
	return r, nil
}

// PutRule replaces the rule that has an id in the text of a document, or appends
// one. The rule is a map of fields in YAML or JSON; its id may be left out, and
// can't be another one. Fields that mean the same before and after stay as they are written.
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
	r, err := e.readRule(id, rule)
	if err != nil {
		return nil, err
	}
	if notThere != nil {
		e.doc.Rules = append(e.doc.Rules, r.rule)
		if rules.flow {
			e.appendItem(rules, e.flow(r.root))
		} else {
			e.appendItem(rules, e.blockRule(r, rules.first.column+2))
		}
		return e.result()
	}
	e.doc.Rules[i] = r.rule
	old := rules.items[i]
	// Comments are worth keeping: the new rule's if it has any, or else the old one's.
	if !bytes.ContainsRune(rule, '#') {
		if e.merge(old, r.root) == nil {
			if out, err := e.result(); err == nil {
				return out, nil
			}
		}
		e.changes = nil
	}
	with := e.flow(r.root)
	if !old.flow {
		with = e.blockRule(r, old.fields[0].at.column)
	}
	e.put(old, with)
	return e.result()
}

// blockRule writes a rule on lines of its own, in the words and with the comments that it came with if it came so.
func (e *editor) blockRule(r *newRule, column int) string {
	if r.root.flow {
		return e.block(r.root, column)
	}
	var lines []string
	if r.id != "" {
		lines = append(lines, "id: "+e.scalar(r.id, 0))
	}
	for i, line := range r.src.lines[r.root.first.line-1:] {
		content := strings.TrimLeft(line, " ")
		if content == "" || strings.HasPrefix(content, "...") {
			continue
		}
		deeper := max(len(line)-len(content)-(r.root.first.column-1), 0)
		if i == 0 {
			deeper = 0 // there may be a --- before it
			content = string([]rune(line)[r.root.first.column-1:])
		}
		lines = append(lines, strings.Repeat(" ", deeper)+content)
	}
	return strings.Join(lines, e.eol+indent(column))
}

// merge makes the fields of a map those of another one.
func (e *editor) merge(old, m *node) error {
	was, is := old.byName(), m.byName()
	for _, f := range old.fields {
		now, ok := is[f.name]
		switch {
		case !ok: // it goes below
		case sameValue(f.value, now.value):
		case f.value.kind == mapping && now.value.kind == mapping && len(f.value.fields) > 0 && len(now.value.fields) > 0:
			if err := e.merge(f.value, now.value); err != nil {
				return err
			}
		case f.value.kind == scalar && now.value.kind == scalar && f.value.quoted && now.value.quoted:
			e.setText(f.value, now.value.text)
		case e.begin(f.value) > e.lineEnd(e.afterColon(f)): // on the lines below
			e.replace(e.afterColon(f), e.end(f.value), " "+e.flow(now.value))
		default:
			e.put(f.value, e.flow(now.value))
		}
	}
	for _, f := range m.fields {
		if _, ok := was[f.name]; !ok {
			e.insertField(old, len(old.fields)-1, f.name, e.flow(f.value))
		}
	}
	return e.remove(old, func(i int) bool {
		_, stays := is[old.fields[i].name]
		return !stays
	})
}

// sameValue: two values are read as the same, wherever the language takes them.
func sameValue(a, b *node) bool {
	if a.kind != b.kind || len(a.fields) != len(b.fields) || len(a.items) != len(b.items) {
		return false
	}
	isNumber := func(n *node) bool { return !n.quoted && isLiteral(n.text) }
	if a.text != b.text || a.kind == scalar && isNumber(a) != isNumber(b) {
		return false
	}
	for i := range a.items {
		if !sameValue(a.items[i], b.items[i]) {
			return false
		}
	}
	others := b.byName()
	for _, f := range a.fields {
		if g, ok := others[f.name]; !ok || !sameValue(f.value, g.value) {
			return false
		}
	}
	return true
}

func (n *node) byName() map[string]field {
	fields := make(map[string]field, len(n.fields))
	for _, f := range n.fields {
		fields[f.name] = f
	}
	return fields
}
