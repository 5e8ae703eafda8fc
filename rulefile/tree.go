package rulefile

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// node is a value of the document and where it stands.
type node struct {
	kind   kind
	at     place
	text   string // of a scalar
	quoted bool   // a scalar that is text whatever it looks like
	fields []field
	items  []*node

	// What edits need beside it: where the value begins (at may be its name), and
	// either the bracket that closes it or, for a list on lines of its own, the dashes.
	first  place
	flow   bool
	last   place
	dashes []place
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
	tokens := joinColons(withoutComments(lexer.Tokenize(src.text)))
	guard(tokens, list)
	checkEscapes(tokens, src, list)
	if list.any() {
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		addSyntax(err, list)
		return nil
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return nil
	}
	return build(file.Docs[0].Body, list)
}

func withoutComments(tokens token.Tokens) token.Tokens {
	kept := tokens[:0]
	for _, tk := range tokens {
		if tk.Type != token.CommentType {
			kept = append(kept, tk)
		}
	}
	return kept
}

// joinColons puts text together that the lexer takes apart at a colon. Between
// braces it ends a name at any colon, while YAML asks for a space behind it:
// [header:X-Tenant, 2001:db8::/32] is text.
func joinColons(tokens token.Tokens) token.Tokens {
	kept := tokens[:0]
	for i := 0; i < len(tokens); i++ {
		tk := tokens[i]
		if i+2 < len(tokens) && isPlain(tk) && tokens[i+1].Type == token.MappingValueType && isPlain(tokens[i+2]) &&
			touches(tk, tokens[i+1]) && touches(tokens[i+1], tokens[i+2]) {
			text := tk.Value + ":" + tokens[i+2].Value
			tk = token.String(text, text, tk.Position)
			i += 2
		}
		kept = append(kept, tk)
	}
	for i, tk := range kept {
		tk.Prev, tk.Next = nil, nil
		if i > 0 {
			tk.Prev, kept[i-1].Next = kept[i-1], tk
		}
	}
	return kept
}

// isPlain: text without quotes, on one line.
func isPlain(tk *token.Token) bool {
	return isScalar(tk) && tk.Indicator == token.NotIndicator && !strings.Contains(strings.TrimSpace(tk.Origin), "\n")
}

// touches: b begins where a ends.
func touches(a, b *token.Token) bool {
	return a.Position.Line == b.Position.Line && a.Position.Column+utf8.RuneCountInString(a.Value) == b.Position.Column
}

func placeOf(tk *token.Token) place { return place{tk.Position.Line, tk.Position.Column} }

// build takes over what the language uses of the YAML library's tree. The guard
// has refused everything else, and trees too deep to walk.
func build(n ast.Node, list *problems) *node {
	switch n := n.(type) {
	case *ast.MappingNode:
		m := &node{kind: mapping, at: placeOf(n.Start), flow: n.IsFlowStyle, fields: make([]field, 0, len(n.Values))}
		for _, v := range n.Values {
			m.fields = append(m.fields, buildField(v, list))
		}
		if !n.IsFlowStyle && len(m.fields) > 0 {
			m.at = m.fields[0].at
		}
		m.first = m.at
		if n.End != nil {
			m.last = placeOf(n.End)
		}
		return m
	case *ast.MappingValueNode:
		f := buildField(n, list)
		return &node{kind: mapping, at: f.at, first: f.at, fields: []field{f}}
	case *ast.SequenceNode:
		s := &node{kind: sequence, at: placeOf(n.Start), first: placeOf(n.Start), flow: n.IsFlowStyle, items: make([]*node, 0, len(n.Values))}
		if n.End != nil {
			s.last = placeOf(n.End)
		}
		for i, v := range n.Values {
			item := build(v, list)
			if !n.IsFlowStyle && i < len(n.Entries) {
				s.dashes = append(s.dashes, placeOf(n.Entries[i].Start))
				if item.kind == empty {
					item.at = s.dashes[i]
				}
			}
			s.items = append(s.items, item)
		}
		return s
	case *ast.NullNode:
		return &node{kind: empty, at: placeOf(n.Token)}
	case ast.ScalarNode:
		return buildScalar(n.GetToken(), list)
	}
	list.add(placeOf(n.GetToken()), "", "a YAML %s is no part of the rule language", strings.ToLower(n.Type().String()))
	return &node{at: placeOf(n.GetToken())}
}

func buildField(v *ast.MappingValueNode, list *problems) field {
	key := buildScalar(v.Key.GetToken(), list)
	f := field{name: key.text, at: key.at, value: build(v.Value, list)}
	// What is missing has no place of its own, and a map or list on the lines
	// below is best found by its name.
	if f.value.kind == empty || f.value.kind != scalar && f.value.at.line != f.at.line {
		f.value.at = f.at
	}
	return f
}

func buildScalar(tk *token.Token, list *problems) *node {
	n := &node{kind: scalar, at: placeOf(tk), first: placeOf(tk), text: tk.Value}
	n.quoted = tk.Type == token.SingleQuoteType || tk.Type == token.DoubleQuoteType
	if strings.ContainsFunc(n.text, func(r rune) bool { return isControl(r) || r == '\t' || r == utf8.RuneError }) {
		list.add(n.at, "", "text may hold printable characters only, got %q", shorten(n.text))
	}
	return n
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
	if _, err := parseNumber(s); err == nil {
		return true
	}
	return s == "true" || s == "false"
}

// shorten cuts text that is too long to repeat in a message.
func shorten(s string) string { return cut(s, 64) }
