package rulefile

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxName is how many characters a name may have, as in YAML.
const maxName = 1024

func (p *parser) plain() bool {
	text := p.plainText()
	return p.hasNoTab(len(text)) && p.scalar(text, text)
}

// hasNoTab reports whether the next n bytes contain no tab, and adds a problem if they do. In p.line, tabs are spaces.
func (p *parser) hasNoTab(n int) bool {
	tab := strings.IndexByte(p.src.text[p.at:p.at+n], '\t')
	return tab < 0 || p.fail(p.at+tab, "", "write a space in place of this tab")
}

// plainText returns the unquoted text that comes next.
func (p *parser) plainText() string {
	flow, n := p.inFlow(), 1
	for ; n < len(p.line); n++ {
		c := p.line[n]
		if c == ':' && p.endsName(n+1) || c == '#' && p.line[n-1] == ' ' || flow && strings.IndexByte(brackets, c) >= 0 {
			break
		}
	}
	return strings.TrimRight(p.line[:n], " ")
}

// brackets are the characters that end an unquoted text between brackets.
const brackets = ",[]{}"

// endsName reports whether a colon ends a name, if n bytes are before what follows the colon.
func (p *parser) endsName(n int) bool {
	return p.ends(n) || p.inFlow() && strings.IndexByte(brackets, p.line[n]) >= 0
}

// scalar handles a text, and the colon after it if the text is a name. written is the text as
// written, with its quotes, and text is its value.
func (p *parser) scalar(written, text string) bool {
	flow, first := p.inFlow(), p.first
	behind := strings.TrimLeft(p.line[len(written):], " ")
	colon := len(p.line) - len(behind)
	quoted := written[0] == '"' || written[0] == '\''
	isName := behind != "" && behind[0] == ':' && (p.endsName(colon+1) || flow && quoted)
	switch {
	case !isName:
		if !p.value(written) {
			return false
		}
		p.text(written, text, quoted)
		return true
	case written == "<<":
		return p.fail(p.at, "", "merge keys (<<) are no part of the rule language: write the fields out")
	case utf8.RuneCountInString(p.line[:colon]) > maxName:
		return p.fail(p.at, "", "is too long: a name has at most %d characters", maxName)
	case flow && p.top().colon && p.last != 'a':
		return p.fail(p.at, "", "a comma is missing before this, or text that holds a colon needs quotes")
	case flow && p.top().open == '[' && len(behind) > 1 && (behind[1] == ',' || behind[1] == ']'):
		return p.fail(p.at, "", "text that holds a colon needs quotes here")
	case flow && !p.value(written), !flow && !p.count():
		return false
	case !flow && !first:
		return p.fail(p.at, "begin a new line, or quote text that holds a colon", "a field's value can't be another field on the same line")
	case !flow && !p.indented(mapping):
		return false
	}
	l, in := p.top(), p.top().node
	if l.colon = flow; l.open == '[' {
		in = p.add(mapping)
	}
	p.field(in, text, p.at+colon+1)
	p.take(colon+1, ':')
	return true
}

// text handles a text that is a value, or, between braces, a name without a value.
func (p *parser) text(written, text string, quoted bool) {
	switch {
	case p.inFlow() && p.top().open == '{' && p.last != ':':
		p.field(p.top().node, text, p.at+len(written))
	case !quoted && (text == "null" || text == "Null" || text == "NULL" || text == "~"):
		p.add(empty).to = p.at + len(written)
	default:
		n := p.add(scalar)
		n.text, n.quoted, n.to = text, quoted, p.at+len(written)
	}
	p.take(len(written), 'a')
}

// field begins a field of a map. Its value gets a place now, in case none is written.
func (p *parser) field(in *node, name string, behind int) {
	in.children = append(in.children, child{name, p.at, behind, &node{at: p.at, from: behind, to: behind}})
}

func (p *parser) quoted() bool {
	n := quotedLen(p.line)
	if n < 0 {
		if strings.IndexByte(p.src.text[p.src.nextLine(p.at):], p.line[0]) >= 0 {
			return p.fail(p.at, "is a quote missing at its end?", "text must end on the line that it begins on")
		}
		return p.fail(p.at, "", "the quote %c that opens here is never closed", p.line[0])
	}
	if !p.hasNoTab(n) {
		return false
	}
	text := p.line[:n]
	if text[0] == '\'' {
		return p.scalar(text, strings.ReplaceAll(text[1:n-1], "''", "'"))
	}
	is, ok := p.unescape(text)
	return ok && p.scalar(text, is)
}

// quotedLen returns the length of the quoted text at the start of s, or -1 if it has no end.
func quotedLen(s string) int {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && s[0] == '"':
			i++
		case s[i] != s[0]:
		case s[0] == '\'' && i+1 < len(s) && s[i+1] == '\'':
			i++
		default:
			return i + 1
		}
	}
	return -1
}

// unescape decodes the text between double quotes, in YAML or in JSON.
func (p *parser) unescape(text string) (is string, ok bool) {
	const hint = "write it between single quotes, where a backslash is a backslash"
	var out strings.Builder
	for i := 1; i < len(text)-1; i++ {
		if text[i] != '\\' {
			out.WriteByte(text[i])
			continue
		}
		char, n := escape(text[i:])
		if next := text[i+n:]; utf16.IsSurrogate(char) && strings.HasPrefix(next, `\`) {
			low, more := escape(next)
			char, n = utf16.DecodeRune(char, low), n+more
		}
		switch {
		case n < 2:
			return "", p.fail(p.at+i+1, hint, "has a backslash that means nothing between double quotes")
		case !utf8.ValidRune(char):
			return "", p.fail(p.at+i+1, hint, `has an escape that is no character: \x takes 2 digits, \u takes 4 and \U takes 8`)
		case isControl(char) || char == '\t' || char == utf8.RuneError:
			return "", p.fail(p.at, "", "text may hold printable characters only, got %s", text[i:i+n])
		}
		out.WriteRune(char)
		i += n - 1
	}
	return out.String(), true
}

// escape decodes the escape at the start of s, and returns its length. The character is -1 if the
// escape is invalid.
func escape(s string) (char rune, n int) {
	const control = "0abtnvfreNLP" // control characters, which aren't allowed
	switch c, digits := s[1], hexDigits[s[1]]; {
	case strings.IndexByte(` "'/\`, c) >= 0:
		return rune(c), 2
	case c == '_':
		return 0xa0, 2
	case strings.IndexByte(control, c) >= 0:
		return 0, 2
	case digits == 0:
		return -1, 1
	case len(s) > 2+digits:
		if code, err := strconv.ParseUint(s[2:2+digits], 16, 32); err == nil {
			return rune(code), 2 + digits
		}
	}
	return -1, 2
}

// hexDigits are how many digits follow a letter in an escape.
var hexDigits = map[byte]int{'x': 2, 'u': 4, 'U': 8}
