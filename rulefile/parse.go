package rulefile

import (
	"fmt"
	"strings"
)

const (
	// maxDepth is how deep maps and lists may be nested. The language needs 7 levels: the document, its rules, a rule, its
	// overrides, one of them, its limits, one of them.
	maxDepth = 12
	// maxValues bounds the memory for parsing: each name and value takes some 400 bytes. A file with 10,000 overrides has
	// 60,000.
	maxValues = 250_000
)

// parser parses the part of YAML that the language has, and all of JSON. It recognizes where the rest of YAML begins, and says
// what to write instead.
type parser struct {
	list   *problems
	src    *source
	root   *node
	levels []level
	items  []*node // the items of lists with dashes
	values int
	ended  bool // a line "..." has ended the document

	// line is the rest of the current line, with spaces for tabs. at is its place in the text, and begin is that of the whole
	// line.
	line      string
	at, begin int
	// first means that nothing but dashes came before in this line.
	first bool
	// last is the previous token: '-', ':', ',', a bracket, or 'a' for text. It is 0 at the beginning.
	last byte
	// end is where the previous token ends.
	end int
}

// level is a map or a list that hasn't ended yet.
type level struct {
	*node
	open   byte // '[' or '{', or 0 if the level is made by indentation
	column int  // how many bytes come before its first name or dash
	colon  bool // between brackets: there was a colon since the last comma
}

// parseTree turns text into a tree. After a problem it returns nil.
func parseTree(src *source, list *problems) *node {
	p := &parser{list: list, src: src, root: &node{at: nowhere}}
	for _, p.begin = range src.begins {
		line := strings.TrimRight(src.text[p.begin:src.lineEnd(p.begin)], " \t")
		p.line = strings.ReplaceAll(line, "\t", " ")
		p.at, p.first = p.begin, true
		if !p.marker() {
			return nil
		}
		for p.blanks(); p.line != "" && p.line[0] != '#'; p.blanks() {
			if !p.token() {
				p.blameBracket()
				return nil
			}
		}
	}
	if p.inFlow() {
		p.unclosed()
		return nil
	}
	for len(p.levels) > 0 {
		p.leave()
	}
	for _, item := range p.items {
		if item.kind == empty && item.from == item.to {
			p.fail(item.from-1, "", "this list item is empty: write something behind the dash, or remove it")
		}
	}
	return p.root
}

// fail adds a problem. It returns false, for callers that then stop.
func (p *parser) fail(at int, hint, format string, args ...any) bool {
	p.list.add(at, "", format, args...).Hint = hint
	return false
}

func (p *parser) unclosed() bool {
	l := p.top()
	return p.fail(l.from, fmt.Sprintf("write %q where it ends", closing[l.open]), "this %q is never closed", string(l.open))
}

var closing = map[byte]string{'[': "]", '{': "}"}

// blameBracket moves a problem to the mistake that caused it. If a bracket is open, and the line isn't indented deeper than the
// bracket's field, then the line is fine, and the bracket should have been closed before it.
func (p *parser) blameBracket() {
	if !p.inFlow() || p.top().from >= p.begin || p.list.full() {
		return
	}
	around := len(p.levels) - 1
	for around >= 0 && p.levels[around].open != 0 {
		around--
	}
	line := p.src.text[p.begin:p.src.lineEnd(p.begin)]
	if around >= 0 && len(line)-len(strings.TrimLeft(line, " \t")) <= p.levels[around].column {
		p.list.list = p.list.list[:len(p.list.list)-1]
		p.unclosed()
	}
}

func (p *parser) skip(n int) { p.line, p.at = p.line[n:], p.at+n }

// take moves past a token.
func (p *parser) take(n int, token byte) {
	p.skip(n)
	p.last, p.end, p.first = token, p.at, p.first && token == '-'
}

func (p *parser) blanks() { p.skip(len(p.line) - len(strings.TrimLeft(p.line, " "))) }

// ends reports whether n bytes are followed by a space or the end of the line.
func (p *parser) ends(n int) bool { return len(p.line) <= n || p.line[n] == ' ' }

func (p *parser) top() *level { return &p.levels[len(p.levels)-1] }

func (p *parser) inFlow() bool { return len(p.levels) > 0 && p.top().open != 0 }

// free reports whether a value can come next.
func (p *parser) free() bool { return strings.IndexByte("\x00-:,[{", p.last) >= 0 }

// add begins the next value: that of the last name, a list item, or the document.
func (p *parser) add(k kind) *node {
	n := p.root
	if len(p.levels) > 0 {
		switch l := p.top(); {
		case p.last != ':' && l.open != 0:
			n = &node{at: nowhere}
			l.children = append(l.children, child{at: p.at, value: n})
		case l.colon && l.open == '[': // [name: value]
			n = l.last().value.last().value
		default:
			n = l.last().value
		}
	}
	// A value that is missing is best shown at its name, and so is a map or list on the lines below.
	if n.at == nowhere || k == scalar || k != empty && n.at >= p.begin {
		n.at = p.at
	}
	n.kind, n.from = k, p.at
	return n
}

// enter begins a map or a list.
func (p *parser) enter(k kind, open byte) bool {
	n := p.add(k)
	n.flow = open != 0
	if p.levels = append(p.levels, level{node: n, open: open, column: p.at - p.begin}); len(p.levels) > maxDepth {
		return p.fail(p.at, "", "is nested more than %d levels deep", maxDepth)
	}
	return true
}

// leave ends a map or a list.
func (p *parser) leave() {
	p.top().to = p.end
	p.levels = p.levels[:len(p.levels)-1]
}

// marker handles the lines that begin and end a document.
func (p *parser) marker() bool {
	begins := strings.HasPrefix(p.line, "---") && p.ends(3)
	ends := strings.HasPrefix(p.line, "...") && p.ends(3)
	switch {
	case strings.HasPrefix(p.line, "%"):
		name, _, _ := strings.Cut(p.line[1:], " ")
		return p.fail(p.at, "", "directives (%%%s) are no part of the rule language: quote text that begins with %%", shorten(name))
	case !begins && !ends:
		return true
	case p.inFlow():
		return p.unclosed()
	case begins && p.last != 0:
		return p.fail(p.at, "", "a rule file is one document: remove this --- and put all rules under one rules:")
	}
	p.skip(3)
	p.last, p.first, p.ended = '-', false, ends
	return true
}

// token parses a name with its colon, a value or a punctuation mark, and reports whether to go on.
func (p *parser) token() bool {
	at, c, flow := p.at, p.line[0], p.inFlow()
	switch {
	case p.ended:
		return p.fail(at, "", "a rule file is one document: nothing may follow the line ...")
	case c == '"' || c == '\'':
		return p.quoted()
	case c == '-' && p.ends(1):
		switch {
		case flow:
			return p.fail(at, "", `"-" makes a list item only at the start of a line: between [ and ] items are separated by commas`)
		case !p.first:
			return p.fail(at, "begin a new line, or write [a, b]", "a list with dashes begins on a line of its own")
		case !p.indented(sequence):
			return false
		}
		item := &node{at: nowhere, from: at + 1, to: at + 1}
		p.top().children, p.items = append(p.top().children, child{at: at, value: item}), append(p.items, item)
	case c == '[' || c == '{':
		if flow && p.last == 'a' {
			return p.fail(at, "", "text that holds %q must be quoted inside [ ] and { }", string(c))
		}
		if flow && p.top().open == '{' && p.free() && p.last != ':' {
			return p.fail(at, "", "must be the name of a field")
		}
		k := sequence
		if c == '{' {
			k = mapping
		}
		if !p.value("") || !p.enter(k, c) {
			return false
		}
	case c == ']' || c == '}':
		return p.close(c)
	case c == ',' && flow:
		if p.free() && p.last != ':' {
			return p.fail(at, "", "there is nothing before this comma")
		}
		p.endPair()
	case c == ':' && p.endsName(1):
		return p.fail(at, "quote text that holds a colon", "there is no name before this colon on its line")
	case c == '?' && p.ends(1):
		return p.fail(at, "", `keys marked with "?" are no part of the rule language: write name: value`)
	case (c == '|' || c == '>') && !flow:
		return p.fail(at, "", "blocks of text (%c) are no part of the rule language: write the value on one line", c)
	case c == '@' || c == '`':
		return p.fail(at, "", "text that begins with %c must be quoted", c)
	case strings.IndexByte(",|>%", c) >= 0:
		return p.fail(at, "", "text that begins with %q must be quoted", string(c))
	case c == '*':
		p.fail(at, fmt.Sprintf("write %q", shorten(p.plainText())), "text that begins with * must be quoted: aliases are no part of the rule language")
		return p.plain() // there are usually several
	case c == '&' || c == '!':
		p.reference(c)
		return true
	default:
		return p.plain()
	}
	p.take(1, c)
	return true
}

// reference adds a problem for an anchor or a tag, and goes on.
func (p *parser) reference(c byte) {
	end := strings.IndexAny(p.line, " ,[]{}")
	if end < 0 {
		end = len(p.line)
	}
	if name := shorten(p.line[1:end]); c == '&' {
		p.fail(p.at, "", "anchors (&%s) are no part of the rule language: write the value out where it is used, or quote text that begins with &", name)
	} else {
		p.fail(p.at, "", "tags (!%s) are no part of the rule language: quote text that begins with !", name)
	}
	p.skip(end)
	p.first = false
}

// close ends a level between brackets.
func (p *parser) close(c byte) bool {
	if !p.inFlow() {
		return p.fail(p.at, "", "this %q closes nothing: quote text that holds it", string(c))
	}
	l := p.top()
	if (l.open == '{') != (c == '}') {
		return p.fail(p.at, "", "this %q doesn't close the %q of line %d, column %d", string(c), string(l.open), p.src.line(l.from)+1, p.src.column(l.from)+1)
	}
	p.endPair()
	p.take(1, c)
	p.leave()
	return true
}

// endPair ends the pair before a comma or a bracket. In a list, a name with a value is a map.
func (p *parser) endPair() {
	if l := p.top(); l.colon && l.open == '[' {
		l.last().value.to = p.end
	}
	p.top().colon = false
}

// indented begins or continues a map or a list that is made by indentation.
func (p *parser) indented(k kind) bool {
	column, left := p.at-p.begin, false
	for len(p.levels) > 0 {
		l := p.top()
		// A list may be indented as little as the name of its field.
		if l.column < column || l.column == column && (k == sequence || l.kind == mapping) {
			break
		}
		p.leave()
		p.last, left = 'a', true
	}
	switch {
	case len(p.levels) > 0 && p.top().column == column && p.top().kind == k:
		return true
	case p.free():
		return p.enter(k, 0)
	case left:
		return p.fail(p.at, "is this line indented like its neighbours?", "doesn't belong here")
	}
	return p.misplaced()
}

// misplaced adds a problem for a line that begins where no value is allowed.
func (p *parser) misplaced() bool {
	switch {
	case len(p.levels) == 0 && p.last == 'a':
		written := strings.ReplaceAll(p.src.text[p.root.from:p.root.to], "\t", " ")
		return p.fail(p.root.from, "is there a colon missing behind "+shorten(written)+"?", "must be the name of a field")
	case len(p.levels) > 0 && p.top().column < p.at-p.begin:
		return p.fail(p.at, "is this line indented too far?", "doesn't belong here: the field above already has a value")
	}
	return p.fail(p.at, "", "doesn't belong here: the field above already has a value")
}

// value checks that a value can begin here: a text, or an opening bracket.
func (p *parser) value(text string) bool {
	switch {
	case !p.count():
		return false
	case !p.inFlow() && p.first && len(p.levels) > 0 && p.at-p.begin <= p.top().column:
		hint := "is a colon missing, or is this line indented too little?"
		if name, _, ok := strings.Cut(text, ":"); ok && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") == "" {
			hint = "is a space missing behind the colon?"
		}
		if p.top().kind == sequence {
			return p.fail(p.at, "is a dash missing, or is this line indented too little?", "must be an item of the list above")
		}
		return p.fail(p.at, hint, "must be a field of the map above, name: value")
	case p.free():
		return true
	case p.inFlow() && p.top().from < p.begin:
		return p.fail(p.at, "", "a comma is missing before this, or the %q of line %d is not closed", string(p.top().open), p.src.line(p.top().from)+1)
	case p.inFlow():
		return p.fail(p.at, "quote text that holds any of [ ] { } , : #", "a comma is missing before this")
	case p.first:
		return p.misplaced()
	}
	return p.fail(p.at, "is a comma or a quote missing before it?", "doesn't belong here")
}

func (p *parser) count() bool {
	if p.values++; p.values > maxValues {
		return p.fail(p.at, "", "is too large: a rule file has at most %d names and values", maxValues)
	}
	return true
}
