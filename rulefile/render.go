package rulefile

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// plain matches text that needs no quotes anywhere, unless it looks like a number or one of words.
var plain = regexp.MustCompile(`^[A-Za-z0-9_/.][A-Za-z0-9_/.=-]*$`)

// words are those that YAML parsers don't read as text.
var words = []string{"null", "true", "false", "yes", "no", "on", "off", "y", "n"}

// Quote formats text as rule files have it: between quotes if it needs them.
func Quote(s string) string {
	if plain.MatchString(s) && !isLiteral(s) && !slices.Contains(words, strings.ToLower(s)) {
		return s
	}
	return quoted(s)
}

// scalar formats text, between the given quotes if quote isn't 0.
func (e *editor) scalar(s string, quote byte) string {
	switch {
	case e.json || quote == '"':
		return quoted(s)
	case quote == '\'':
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
	return Quote(s)
}

// quoted formats text between double quotes, which both JSON and YAML can read.
func quoted(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err) // strings can be encoded
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// quoteOf returns how a scalar is quoted in the text: ", ' or 0.
func (e *editor) quoteOf(n *node) byte {
	if c := e.src.text[n.from]; n.quoted && (c == '"' || c == '\'') {
		return c
	}
	return 0
}

// scalars formats texts with commas between them.
func (e *editor) scalars(list []string, quote byte) string {
	parts := make([]string, len(list))
	for i, s := range list {
		parts[i] = e.scalar(s, quote)
	}
	return strings.Join(parts, e.comma)
}

// put replaces a value. setText replaces the text of a scalar, and keeps its quotes.
func (e *editor) put(n *node, with string) { e.replace(n.from, n.to, with) }

func (e *editor) setText(n *node, s string) { e.put(n, e.scalar(s, e.quoteOf(n))) }

// JSON formats a document as JSON. The fields keep their order. The error is [Problems].
func JSON(text []byte) ([]byte, error) {
	r, err := read("rules", text)
	if err != nil {
		return nil, err
	}
	e := &editor{json: true, colon: ": ", comma: ", "}
	return []byte(e.flow(r.root) + "\n"), nil
}

// pair is the name and the formatted value of a field.
type pair struct{ name, value string }

// flowMap formats a map between braces.
func (e *editor) flowMap(fields ...pair) string {
	parts := make([]string, len(fields))
	for i, f := range fields {
		parts[i] = e.scalar(f.name, 0) + e.colon + f.value
	}
	return "{" + strings.Join(parts, e.comma) + "}"
}

// flow formats a value on one line: between brackets, or as a scalar.
func (e *editor) flow(n *node) string {
	switch n.kind {
	case mapping:
		fields := make([]pair, len(n.children))
		for i, f := range n.children {
			fields[i] = pair{f.name, e.flow(f.value)}
		}
		return e.flowMap(fields...)
	case sequence:
		parts := make([]string, len(n.children))
		for i, item := range n.children {
			parts[i] = e.flow(item.value)
		}
		return "[" + strings.Join(parts, e.comma) + "]"
	case empty:
		return "null"
	}
	if n.quoted || !isLiteral(n.text) && !strings.EqualFold(n.text, "true") && !strings.EqualFold(n.text, "false") {
		return e.scalar(n.text, 0)
	}
	if !e.json {
		return n.text
	}
	number := strings.ToLower(strings.TrimPrefix(strings.ReplaceAll(n.text, "_", ""), "+"))
	if json.Valid([]byte(number)) {
		return number
	}
	f, _ := parseNumber(n.text)
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// block formats a map with one field per line. All lines but the first are indented.
func (e *editor) block(m *node, indent string) string {
	lines := make([]string, len(m.children))
	for i, f := range m.children {
		lines[i] = e.scalar(f.name, 0) + ": " + e.flow(f.value)
	}
	return strings.Join(lines, e.eol+indent)
}
