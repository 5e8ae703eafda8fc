package rulefile

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// maxDepth is how deep maps and lists may be nested. The language needs 7:
	// the document, its rules, a rule, its overrides, one of them, its limits, one of them.
	maxDepth = 12
	// maxValues bounds the memory that a text takes while it is read: each name and
	// value takes some 400 bytes. A file with 10,000 overrides has 60,000.
	maxValues = 250_000
	// maxName is how far YAML looks for the colon behind a name.
	maxName = 1024
)

// scanner goes through a text before the YAML library does. The library knows of a
// mistake only its line, and often not even that, so the scanner finds mistakes
// first. It also refuses the parts of YAML that the language leaves out.
type scanner struct {
	list *problems
	src  *source
	// out is the text for the library. Names and values have the same places there as in the source.
	out strings.Builder
	// texts are those that the library would misread, by their places.
	texts  map[place]string
	levels []level
	values int
	ended  bool // by a line "..."

	// line is what is left to read of the current line, with blanks for tabs, and at where that begins.
	line string
	at   place
	// written is the current line with its tabs.
	written string
	// first: nothing but dashes came before in the line.
	first bool
	// last is the token before: '-', ':', ',', a bracket, or 'a' for text. It is 0 before the first.
	last byte
	// text is the last value that is text.
	text   string
	textAt place
}

// level is a map or a list that is open where the scanner is.
type level struct {
	open  byte  // '[' or '{', or 0 if the level is made by indentation
	at    place // of the bracket, or of the first name or dash
	dash  bool  // made by indentation: a list
	colon bool  // between brackets: a colon came after the last comma
}

// scan returns the text for the YAML library, with what that would misread, or notes why there is none.
func scan(src *source, list *problems) (string, map[place]string) {
	s := &scanner{list: list, src: src, texts: map[place]string{}}
	for i, line := range src.lines {
		s.written = strings.TrimRight(line, " \t")
		s.line = strings.ReplaceAll(s.written, "\t", " ")
		s.at, s.first = place{i + 1, 1}, true
		if !s.marker() {
			return "", nil
		}
		for s.blanks(); s.line != "" && s.line[0] != '#'; s.blanks() {
			if !s.token() {
				s.blameBracket()
				return "", nil
			}
		}
		s.out.WriteByte('\n')
	}
	if s.inFlow() {
		s.unclosed()
	}
	return s.out.String(), s.texts
}

// fail notes a problem. It returns false, for callers that read no further then.
func (s *scanner) fail(at place, hint, format string, args ...any) bool {
	s.list.add(at, "", format, args...).Hint = hint
	return false
}

func (s *scanner) unclosed() bool {
	l := s.top()
	return s.fail(l.at, fmt.Sprintf("write %q where it ends", closing[l.open]), "this %q is never closed", string(l.open))
}

var closing = map[byte]string{'[': "]", '{': "}"}

// blameBracket tells of a mistake where it was made: a line that is indented no deeper than the
// field with an open bracket is fine by itself, and the bracket should have been closed before.
func (s *scanner) blameBracket() {
	if !s.inFlow() || s.top().at.line == s.at.line || s.list.full() {
		return
	}
	around := len(s.levels) - 1
	for around >= 0 && s.levels[around].open != 0 {
		around--
	}
	indent := len(s.written) - len(strings.TrimLeft(s.written, " \t"))
	if around >= 0 && indent < s.levels[around].at.column {
		s.list.list = s.list.list[:len(s.list.list)-1]
		s.unclosed()
	}
}

// take moves over n bytes. The library gets to see them as they are.
func (s *scanner) take(n int) { s.takeAs(n, s.line[:n]) }

func (s *scanner) takeAs(n int, as string) {
	s.out.WriteString(as)
	s.at.column += utf8.RuneCountInString(s.line[:n])
	s.line = s.line[n:]
}

func (s *scanner) blanks() { s.take(len(s.line) - len(strings.TrimLeft(s.line, " "))) }

// ends: behind n bytes there is a blank or nothing.
func (s *scanner) ends(n int) bool { return len(s.line) <= n || s.line[n] == ' ' }

func (s *scanner) top() *level { return &s.levels[len(s.levels)-1] }

func (s *scanner) inFlow() bool { return len(s.levels) > 0 && s.top().open != 0 }

// free: a value can come next.
func (s *scanner) free() bool { return strings.IndexByte("\x00-:,[{", s.last) >= 0 }

func (s *scanner) push(l level) bool {
	if s.levels = append(s.levels, l); len(s.levels) > maxDepth {
		return s.fail(l.at, "", "is nested more than %d levels deep", maxDepth)
	}
	return true
}

// marker takes what stands before and behind a document. The library gets to see blanks.
func (s *scanner) marker() bool {
	begins := strings.HasPrefix(s.line, "---") && s.ends(3)
	ends := strings.HasPrefix(s.line, "...") && s.ends(3)
	switch {
	case strings.HasPrefix(s.line, "%"):
		name, _, _ := strings.Cut(s.line[1:], " ")
		return s.fail(s.at, "", "directives (%%%s) are no part of the rule language: quote text that begins with %%", shorten(name))
	case !begins && !ends:
		return true
	case s.inFlow():
		return s.unclosed()
	case begins && s.last != 0:
		return s.fail(s.at, "", "a rule file is one document: remove this --- and put all rules under one rules:")
	}
	s.takeAs(3, "   ")
	s.last, s.first, s.ended = '-', false, ends
	return true
}

// token takes a name with its colon, a value or a mark, and reports whether to go on.
func (s *scanner) token() bool {
	at, c, flow := s.at, s.line[0], s.inFlow()
	switch {
	case s.ended:
		return s.fail(at, "", "a rule file is one document: nothing may follow the line ...")
	case c == '"' || c == '\'':
		return s.quoted()
	case c == '-' && s.ends(1):
		switch {
		case flow:
			return s.fail(at, "", `"-" makes a list item only at the start of a line: between [ and ] items are separated by commas`)
		case !s.first:
			return s.fail(at, "begin a new line, or write [a, b]", "a list with dashes begins on a line of its own")
		case !s.enter(at, true):
			return false
		}
		s.take(1)
		s.last = '-'
		return true
	case c == '[' || c == '{':
		if flow && s.last == 'a' {
			return s.fail(at, "", "text that holds %q must be quoted inside [ ] and { }", string(c))
		}
		if !s.value(at, "") || !s.push(level{open: c, at: at}) {
			return false
		}
	case c == ']' || c == '}':
		if !s.close(c) {
			return false
		}
	case c == ',' && flow:
		if s.free() && s.last != ':' {
			return s.fail(at, "", "there is nothing before this comma")
		}
		s.top().colon = false
	case c == ':' && s.endsName(1):
		return s.fail(at, "quote text that holds a colon", "there is no name before this colon on its line")
	case c == '?' && s.ends(1):
		return s.fail(at, "", `keys marked with "?" are no part of the rule language: write name: value`)
	case (c == '|' || c == '>') && !flow:
		return s.fail(at, "", "blocks of text (%c) are no part of the rule language: write the value on one line", c)
	case c == '@' || c == '`':
		return s.fail(at, "", "text that begins with %c must be quoted", c)
	case strings.IndexByte(",|>%", c) >= 0:
		return s.fail(at, "", "text that begins with %q must be quoted", string(c))
	case c == '*':
		s.fail(at, fmt.Sprintf("write %q", shorten(s.plainText())), "text that begins with * must be quoted: aliases are no part of the rule language")
		return s.plain() // there are mostly several
	case c == '&' || c == '!':
		s.reference(c)
		return true
	default:
		return s.plain()
	}
	s.take(1)
	s.last, s.first = c, false
	return true
}

// reference notes an anchor or a tag, and goes on.
func (s *scanner) reference(c byte) {
	end := strings.IndexAny(s.line, " ,[]{}")
	if end < 0 {
		end = len(s.line)
	}
	if name := shorten(s.line[1:end]); c == '&' {
		s.fail(s.at, "", "anchors (&%s) are no part of the rule language: write the value out where it is used, or quote text that begins with &", name)
	} else {
		s.fail(s.at, "", "tags (!%s) are no part of the rule language: quote text that begins with !", name)
	}
	s.take(end)
	s.first = false
}

// close leaves a level between brackets.
func (s *scanner) close(c byte) bool {
	if !s.inFlow() {
		return s.fail(s.at, "", "this %q closes nothing: quote text that holds it", string(c))
	}
	if l := s.top(); (l.open == '{') != (c == '}') {
		return s.fail(s.at, "", "this %q doesn't close the %q of line %d, column %d", string(c), string(l.open), l.at.line, l.at.column)
	}
	s.levels = s.levels[:len(s.levels)-1]
	return true
}

// enter begins, or goes on with, a map or a list that is made by indentation.
func (s *scanner) enter(at place, dash bool) bool {
	left := false
	for len(s.levels) > 0 {
		l := s.top()
		// A list may stand right under the name of the field that holds it.
		if l.at.column < at.column || l.at.column == at.column && (dash || !l.dash) {
			break
		}
		s.levels = s.levels[:len(s.levels)-1]
		s.last, left = 'a', true
	}
	switch {
	case len(s.levels) > 0 && s.top().at.column == at.column && s.top().dash == dash:
		return true
	case s.free():
		return s.push(level{at: at, dash: dash})
	case left:
		return s.fail(at, "is this line indented like its neighbours?", "doesn't belong here")
	}
	return s.misplaced(at)
}

// misplaced notes what begins a line though no value can come next.
func (s *scanner) misplaced(at place) bool {
	switch {
	case len(s.levels) == 0 && s.last == 'a':
		return s.fail(s.textAt, "is there a colon missing behind "+shorten(s.text)+"?", "must be the name of a field")
	case len(s.levels) > 0 && s.top().at.column < at.column:
		return s.fail(at, "is this line indented too far?", "doesn't belong here: the field above already has a value")
	}
	return s.fail(at, "", "doesn't belong here: the field above already has a value")
}

// value checks that a value can begin here: a text, or what a bracket opens.
func (s *scanner) value(at place, text string) bool {
	switch {
	case !s.count(at):
		return false
	case !s.inFlow() && s.first && len(s.levels) > 0 && at.column <= s.top().at.column:
		hint := "is a colon missing, or is this line indented too little?"
		if name, _, ok := strings.Cut(text, ":"); ok && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") == "" {
			hint = "is a space missing behind the colon?"
		}
		if s.top().dash {
			return s.fail(at, "is a dash missing, or is this line indented too little?", "must be an item of the list above")
		}
		return s.fail(at, hint, "must be a field of the map above, name: value")
	case s.free():
		return true
	case s.inFlow() && at.line > s.top().at.line:
		return s.fail(at, "", "a comma is missing before this, or the %q of line %d is not closed", string(s.top().open), s.top().at.line)
	case s.inFlow():
		return s.fail(at, "quote text that holds any of [ ] { } , : #", "a comma is missing before this")
	case s.first:
		return s.misplaced(at)
	}
	return s.fail(at, "is a comma or a quote missing before it?", "doesn't belong here")
}

func (s *scanner) count(at place) bool {
	if s.values++; s.values > maxValues {
		return s.fail(at, "", "is too large: a rule file has at most %d names and values", maxValues)
	}
	return true
}

func (s *scanner) plain() bool {
	text := s.plainText()
	// Between brackets, the library takes every "?" for a mark, and a colon before a text.
	return s.scalar(text, text, s.inFlow() && (text[0] == ':' || strings.Contains(text, "?")))
}

// plainText is the text without quotes that comes next.
func (s *scanner) plainText() string {
	flow, n := s.inFlow(), 1
	for ; n < len(s.line); n++ {
		c := s.line[n]
		if c == ':' && s.endsName(n+1) || c == '#' && s.line[n-1] == ' ' || flow && strings.IndexByte(brackets, c) >= 0 {
			break
		}
	}
	return strings.TrimRight(s.line[:n], " ")
}

// brackets end a text that stands between brackets.
const brackets = ",[]{}"

// endsName: a colon ends a name if n bytes lead behind it.
func (s *scanner) endsName(n int) bool {
	return s.ends(n) || s.inFlow() && strings.IndexByte(brackets, s.line[n]) >= 0
}

func (s *scanner) quoted() bool {
	n := quotedLen(s.line)
	if n < 0 {
		for _, line := range s.src.lines[s.at.line:] {
			if strings.IndexByte(line, s.line[0]) >= 0 {
				return s.fail(s.at, "is a quote missing at its end?", "text must end on the line that it begins on")
			}
		}
		return s.fail(s.at, "", "the quote %c that opens here is never closed", s.line[0])
	}
	text := s.line[:n]
	if tab := strings.IndexByte(s.written[len(s.written)-len(s.line):][:n], '\t'); tab >= 0 {
		s.take(tab)
		return s.fail(s.at, "", "write a space in place of this tab")
	}
	if text[0] == '\'' || strings.IndexByte(text, '\\') < 0 {
		return s.scalar(text, text, false)
	}
	is, ok := s.unescape(text)
	return ok && s.scalar(text, is, true)
}

// quotedLen is the length of the text between quotes that s begins with, or -1 if it has no end.
func quotedLen[T string | []byte](s T) int {
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

// unescape returns what stands between double quotes. The library doesn't know all
// that JSON has: "\/", and pairs of escapes that are one character.
func (s *scanner) unescape(text string) (is string, ok bool) {
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
			s.take(i + 1)
			return "", s.fail(s.at, hint, "has a backslash that means nothing between double quotes")
		case !utf8.ValidRune(char):
			s.take(i + 1)
			return "", s.fail(s.at, hint, `has an escape that is no character: \x takes 2 digits, \u takes 4 and \U takes 8`)
		case isControl(char) || char == '\t' || char == utf8.RuneError:
			return "", s.fail(s.at, "", "text may hold printable characters only, got %s", text[i:i+n])
		}
		out.WriteRune(char)
		i += n - 1
	}
	return out.String(), true
}

// escape reads a backslash and what follows it, and says how long that is. The
// character is -1 if it is none.
func escape(s string) (char rune, n int) {
	digits := 0
	switch c := s[1]; c {
	case ' ', '"', '\'', '/', '\\':
		return rune(c), 2
	case '_':
		return 0xa0, 2
	case '0', 'a', 'b', 't', 'n', 'v', 'f', 'r', 'e', 'N', 'L', 'P':
		return 0, 2 // some control character
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	default:
		return -1, 1
	}
	if len(s) > 2+digits {
		if code, err := strconv.ParseUint(s[2:2+digits], 16, 32); err == nil {
			return rune(code), 2 + digits
		}
	}
	return -1, 2
}

// scalar takes a text, and the colon behind it if it is a name. Between quotes it
// is something else than what is written.
func (s *scanner) scalar(text, is string, misread bool) bool {
	at, flow, first := s.at, s.inFlow(), s.first
	behind := strings.TrimLeft(s.line[len(text):], " ")
	colon := len(s.line) - len(behind)
	isQuoted := text[0] == '"' || text[0] == '\''
	isName := behind != "" && behind[0] == ':' && (s.endsName(colon+1) || flow && isQuoted)
	switch {
	case !isName:
		if !s.value(at, text) {
			return false
		}
	case text == "<<":
		return s.fail(at, "", "merge keys (<<) are no part of the rule language: write the fields out")
	case utf8.RuneCountInString(s.line[:colon]) > maxName:
		return s.fail(at, "", "is too long: a name has at most %d characters", maxName)
	case flow && s.top().colon && s.last != 'a':
		return s.fail(at, "", "a comma is missing before this, or text that holds a colon needs quotes")
	case flow && s.top().open == '[' && len(behind) > 1 && (behind[1] == ',' || behind[1] == ']'):
		return s.fail(at, "", "text that holds a colon needs quotes here")
	case flow && !s.value(at, text), !flow && !s.count(at):
		return false
	case !flow && !first:
		return s.fail(at, "begin a new line, or quote text that holds a colon", "a field's value can't be another field on the same line")
	case !flow && !s.enter(at, false):
		return false
	}
	if n := utf8.RuneCountInString(text); misread || isName && !isQuoted && !s.ends(colon+1) {
		if n < 2 {
			return s.fail(at, "", "a space is missing behind this colon")
		}
		s.texts[at] = is
		s.takeAs(len(text), `"`+strings.Repeat("x", n-2)+`"`)
	} else {
		s.take(len(text))
	}
	s.last, s.first = 'a', false
	if isName {
		s.take(colon + 1 - len(text))
		s.last = ':'
		if flow {
			s.top().colon = true
		}
	} else {
		s.text, s.textAt = text, at
	}
	return true
}
