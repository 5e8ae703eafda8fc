package rulefile

import (
	"fmt"
	"strings"

	"github.com/weirhq/weir/internal/shown"
	"go.yaml.in/yaml/v3"
)

// node is a value of the document and where it stands.
type node struct {
	kind   kind
	at     place  // where messages point to: a map on the lines below its name is found by the name
	first  place  // where the value begins
	text   string // of a scalar
	quoted bool   // a scalar that is text whatever it looks like
	flow   bool   // between brackets or braces
	fields []field
	items  []*node
}

type field struct {
	name  string
	at    place // of the name
	value *node
}

type kind uint8

const (
	empty kind = iota // nothing was written, or null
	scalar
	mapping
	sequence
)

// parseTree turns text into a tree, or notes why it can't. It returns nil if there is nothing in it.
func parseTree(src *source, list *problems) (root *node) {
	// The YAML library is large, and its input is anyone's. Should it panic after
	// all that has been checked before, the file is at fault, and not the process.
	defer func() {
		if r := recover(); r != nil {
			list.add(place{}, "", "is not valid YAML (%v)", r)
			root = nil
		}
	}()
	text, texts := scan(src, list)
	if list.any() {
		return nil
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		list.add(place{}, "", "is not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return nil
	}
	if len(doc.Content) == 0 {
		return nil
	}
	return (&builder{list, texts}).value(doc.Content[0])
}

// builder takes over what the language uses of the YAML library's tree. The scanner
// has refused everything else, and trees too deep to walk.
type builder struct {
	list  *problems
	texts map[place]string
}

func (b *builder) value(n *yaml.Node) *node {
	at := place{n.Line, n.Column}
	v := &node{at: at, first: at, flow: n.Style&yaml.FlowStyle != 0}
	switch n.Kind {
	case yaml.MappingNode:
		v.kind = mapping
		for i := 0; i < len(n.Content); i += 2 {
			v.fields = append(v.fields, b.field(n.Content[i], n.Content[i+1]))
		}
		// [name: value] is a list of a map that has no braces.
		v.flow = v.flow && (len(v.fields) == 0 || v.fields[0].at != at)
	case yaml.SequenceNode:
		v.kind = sequence
		for _, c := range n.Content {
			item := b.value(c)
			if item.kind == empty && c.Value == "" {
				b.list.add(place{c.Line, c.Column - 1}, "", "this list item is empty: write something behind the dash, or remove it")
			}
			v.items = append(v.items, item)
		}
	default:
		v.quoted = n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0
		if v.quoted || n.Tag != "!!null" {
			v.kind = scalar
			v.text = b.text(n)
		}
	}
	return v
}

func (b *builder) text(n *yaml.Node) string {
	if text, ok := b.texts[place{n.Line, n.Column}]; ok {
		return text
	}
	return n.Value
}

func (b *builder) field(name, value *yaml.Node) field {
	f := field{name: b.text(name), at: place{name.Line, name.Column}, value: b.value(value)}
	// What is missing has no place of its own, and a map or list on the lines
	// below is best found by its name.
	if f.value.kind == empty || f.value.kind != scalar && f.value.at.line != f.at.line {
		f.value.at = f.at
	}
	return f
}

// describe says what stands where something else was expected.
func (n *node) describe() string {
	switch n.kind {
	case mapping:
		return "a map of fields"
	case sequence:
		return "a list"
	case scalar:
		if n.quoted || !isLiteral(n.text) {
			return fmt.Sprintf("%q", shorten(n.text))
		}
		return n.text
	}
	return "nothing"
}

// isLiteral reports whether plain text reads as a number or a truth value, which messages show without quotes.
func isLiteral(s string) bool {
	_, isNumber := parseNumber(s)
	return isNumber || s == "true" || s == "false"
}

// shorten cuts text that is too long to repeat in a message.
func shorten(s string) string { return shown.Clip(s, 64) }
