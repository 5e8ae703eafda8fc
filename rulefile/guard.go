package rulefile

import (
	"strings"

	"github.com/goccy/go-yaml/token"
)

const (
	// maxDepth is how deep maps and lists may be nested. The language needs 7:
	// the document, its rules, a rule, its overrides, one of them, its limits, one of them.
	maxDepth = 12
	// maxWork bounds what the YAML parser will copy, in bytes. It copies the
	// fields behind each field of an indented map, so that n of them cost n²: this
	// is enough for 15,000 in one map; between braces they cost nothing more.
	maxWork = 1 << 30
	// pathOverhead is what each level adds to the path that the parser keeps of every value.
	pathOverhead = 12
)

// guard walks through the tokens before the YAML parser does. It refuses what the
// language doesn't have, and whatever would cost the parser more than the text's
// length: it recurses, so that nesting could exhaust the stack, which ends a Go
// process for good, and it copies.
func guard(tokens token.Tokens, list *problems) {
	g := &walker{list: list, tokens: tokens}
	for i := range tokens {
		if !g.step(i) {
			return
		}
	}
	for _, l := range g.levels {
		if l.open != nil {
			list.add(placeOf(l.open), "", "this %q is never closed", l.open.Value)
			return
		}
	}
}

// level is a map or a list that is open where the walker is.
type level struct {
	open   *token.Token // the bracket or brace, or nil if the level is made by indentation
	column int          // of the level's fields or dashes, if it is made by indentation
	dash   bool         // they are dashes
	count  int          // of fields so far
	colon  bool         // between braces or brackets: a colon came after the last comma
	path   int          // length of the path to the level's current value
	base   int          // length of the path to the level
}

type walker struct {
	list   *problems
	tokens token.Tokens
	levels []level
	work   int
	begun  bool // something came before, so that a document marker begins another one
}

// step looks at one token and reports whether to go on.
func (g *walker) step(i int) bool {
	tk := g.tokens[i]
	var next *token.Token
	if i+1 < len(g.tokens) {
		next = g.tokens[i+1]
	}
	if !g.known(i, tk, next) {
		return false
	}
	switch tk.Type {
	case token.SequenceStartType, token.MappingStartType:
		if i > 0 && g.inFlow() && isScalar(g.tokens[i-1]) {
			g.fail(tk, "text that holds %q must be quoted inside [ ] and { }", tk.Value)
			return false
		}
		g.push(level{open: tk})
	case token.SequenceEndType, token.MappingEndType:
		if !g.close(i, tk) {
			return false
		}
	case token.CollectEntryType:
		if g.inFlow() {
			l := g.top()
			g.checkBare(i, l)
			l.colon = false
			l.count++
			l.path = l.base + pathOverhead
		}
	case token.SequenceEntryType:
		if g.inFlow() {
			g.fail(tk, `"-" makes a list item only at the start of a line: between [ and ] items are separated by commas`)
			return false
		}
		g.indent(tk.Position.Column, true)
		if next == nil || startsLine(tk, next) && next.Position.Column <= tk.Position.Column {
			g.fail(tk, "this list item is empty: write something behind the dash, or remove it")
			return false
		}
	case token.MappingValueType:
		if i > 0 && !g.colon(i, g.tokens[i-1], tk, next) {
			return false
		}
	}
	if len(g.levels) > maxDepth {
		g.fail(tk, "is nested more than %d levels deep", maxDepth)
		return false
	}
	if l := g.top(); l != nil {
		g.work += 8 * l.path // paths are kept, which weighs more than copying
	}
	if g.work > maxWork {
		g.fail(tk, "is too large: the maps up to here have too many fields (about 15,000 can stand on lines of their own, and more between { and })")
		return false
	}
	g.begun = true
	return true
}

// colon handles the colon between a field's name and its value.
func (g *walker) colon(i int, key, tk, next *token.Token) bool {
	if startsLine(key, tk) {
		g.fail(tk, "a name and its colon must stand on one line")
		return false
	}
	if g.inFlow() {
		l := g.top()
		if l.colon {
			if startsLine(l.open, key) {
				g.fail(key, "a comma is missing before this, or the %q of line %d is not closed", l.open.Value, l.open.Position.Line)
			} else {
				g.fail(key, "a comma is missing before this, or text that holds a colon needs quotes")
			}
			return false
		}
		if isPlain(key) && next != nil && isScalar(next) && touches(tk, next) {
			g.fail(tk, "a space is missing behind this colon")
			return false
		}
		l.colon = true
		l.path = l.base + pathOverhead + len(key.Value)
		if next != nil && endsFlowValue(next) {
			if l.open.Type == token.SequenceStartType {
				g.fail(key, "text that holds a colon needs quotes here")
				return false
			}
			g.emptyValue()
		}
		return true
	}
	g.indent(key.Position.Column, false)
	l := g.top()
	l.count++
	l.path = l.base + pathOverhead + len(key.Value)
	g.work += 8 * l.count
	if next == nil {
		return true
	}
	if startsLine(key, next) && (next.Position.Column < l.column ||
		next.Position.Column == l.column && next.Type != token.SequenceEntryType) {
		// Only another field may stand there, and this one has no value.
		if isScalar(next) && (i+2 >= len(g.tokens) || g.tokens[i+2].Type != token.MappingValueType) {
			g.fail(next, "doesn't belong here").Hint = "is a colon missing, or is this line indented too little?"
			return false
		}
		g.emptyValue()
	}
	return true
}

// indent enters or leaves levels that are made by indentation, for a field or a dash in the given column.
func (g *walker) indent(column int, dash bool) {
	l := g.top()
	for ; l != nil && l.open == nil; l = g.top() {
		// A list may stand right under the name of the field that holds it.
		if l.column < column || l.column == column && (dash || !l.dash) {
			break
		}
		g.levels = g.levels[:len(g.levels)-1]
	}
	if l == nil || l.column != column || l.dash != dash {
		g.push(level{column: column, dash: dash})
	}
}

func (g *walker) push(l level) {
	if outer := g.top(); outer != nil {
		l.base = outer.path
	}
	l.path = l.base + pathOverhead
	g.levels = append(g.levels, l)
}

func (g *walker) top() *level {
	if len(g.levels) == 0 {
		return nil
	}
	return &g.levels[len(g.levels)-1]
}

func (g *walker) inFlow() bool { l := g.top(); return l != nil && l.open != nil }

func (g *walker) close(i int, tk *token.Token) bool {
	if !g.inFlow() {
		g.fail(tk, "this %q closes nothing: quote text that holds it", tk.Value)
		return false
	}
	l := g.top()
	if (l.open.Type == token.MappingStartType) != (tk.Type == token.MappingEndType) {
		g.fail(tk, "this %q doesn't close the %q of line %d, column %d", tk.Value, l.open.Value, l.open.Position.Line, l.open.Position.Column)
		return false
	}
	g.checkBare(i, l)
	g.levels = g.levels[:len(g.levels)-1]
	return true
}

// checkBare counts a name between braces that has no value.
func (g *walker) checkBare(i int, l *level) {
	if l.open.Type == token.MappingStartType && !l.colon && i > 0 && isScalar(g.tokens[i-1]) {
		g.emptyValue()
	}
}

// emptyValue: the parser makes room for a value where none is, by moving all tokens behind it.
func (g *walker) emptyValue() { g.work += 8 * len(g.tokens) }

func (g *walker) fail(tk *token.Token, format string, args ...any) *Problem {
	return g.list.add(placeOf(tk), "", format, args...)
}

// known refuses the parts of YAML that the language leaves out.
func (g *walker) known(i int, tk, next *token.Token) bool {
	name := ""
	if next != nil && !startsLine(tk, next) {
		name = next.Value
	}
	switch tk.Type {
	case token.InvalidType:
		addInvalid(tk, g.list)
		return false
	case token.AnchorType:
		g.fail(tk, "anchors (&%s) are no part of the rule language: write the value out where it is used, or quote text that begins with &", shorten(name))
	case token.AliasType:
		g.fail(tk, "text that begins with * must be quoted: aliases are no part of the rule language").
			Hint = `write "*` + shorten(name) + `"`
	case token.MergeKeyType:
		g.fail(tk, "merge keys (<<) are no part of the rule language: write the fields out")
	case token.TagType:
		g.fail(tk, "tags (%s) are no part of the rule language: quote text that begins with !", shorten(tk.Value))
	case token.DirectiveType:
		g.fail(tk, "directives (%%%s) are no part of the rule language: quote text that begins with %%", shorten(name))
		return false
	case token.MappingKeyType:
		g.fail(tk, `keys marked with "?" are no part of the rule language: write name: value`)
		return false
	case token.LiteralType, token.FoldedType:
		g.fail(tk, `blocks of text (%s) are no part of the rule language: write the value on one line`, tk.Value)
		return false
	case token.DocumentHeaderType:
		if g.begun {
			g.fail(tk, "a rule file is one document: remove this --- and put all rules under one rules:")
			return false
		}
	case token.DocumentEndType:
		if next != nil {
			g.fail(next, "a rule file is one document: nothing may follow the line ...")
			return false
		}
	}
	if isPlain(tk) && (tk.Value == "?" || tk.Value != "" && strings.ContainsAny(tk.Value[:1], ",[]{}|>%@`")) {
		g.fail(tk, "text that begins with %q must be quoted", tk.Value[:1])
		return false
	}
	if isPlain(tk) && (strings.Contains(tk.Value, ": ") || strings.HasSuffix(tk.Value, ":")) {
		g.fail(tk, "text that holds a colon needs quotes here")
		return false
	}
	if isScalar(tk) && strings.Contains(strings.TrimSpace(tk.Origin), "\n") {
		g.failLines(i, tk, next)
		return false
	}
	return true
}

// failLines says what is wrong with text that goes on over several lines: mostly
// something is missing at the end of the first, or the second is indented too far.
func (g *walker) failLines(i int, tk, next *token.Token) {
	lines := strings.Split(strings.TrimSpace(tk.Origin), "\n")
	isName := next != nil && next.Type == token.MappingValueType
	isValue := i > 0 && g.tokens[i-1].Type == token.MappingValueType && !startsLine(g.tokens[i-1], tk)
	switch first := shorten(strings.TrimSpace(lines[0])); {
	case tk.Indicator == token.QuotedScalarIndicator:
		g.fail(tk, "text must end on the line that it begins on")
	case isName && isValue:
		second := 1
		for strings.TrimSpace(lines[second]) == "" {
			second++
		}
		column := 1 + len(lines[second]) - len(strings.TrimLeft(lines[second], " "))
		g.list.add(place{tk.Position.Line + second, column}, "", "doesn't belong here: the field above already has a value").
			Hint = "is this line indented too far?"
	case isName:
		g.fail(tk, "must be the name of a field").Hint = "is there a colon missing behind " + first + "?"
	default:
		g.fail(tk, "text must end on the line that it begins on").Hint = "is the line below " + first + " indented too far?"
	}
}

// startsLine: b is on a later line than a.
func startsLine(a, b *token.Token) bool { return b.Position.Line > a.Position.Line }

func endsFlowValue(tk *token.Token) bool {
	return tk.Type == token.CollectEntryType || tk.Type == token.MappingEndType || tk.Type == token.SequenceEndType
}

func isScalar(tk *token.Token) bool {
	switch tk.Type {
	case token.StringType, token.SingleQuoteType, token.DoubleQuoteType, token.NullType, token.BoolType,
		token.IntegerType, token.BinaryIntegerType, token.OctetIntegerType, token.HexIntegerType,
		token.FloatType, token.InfinityType, token.NanType:
		return true
	}
	return false
}
