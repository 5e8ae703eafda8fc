package rulefile

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// nowhere is the place of problems that concern a whole file. Other places are byte offsets in the text.
const nowhere = -1

// source is the text of a rule file.
type source struct {
	text    string
	begins  []int    // where each line begins
	secrets []secret // in no order
}

const byteOrderMark = "\xef\xbb\xbf"

// readSource finds the lines of a text, and adds problems for what isn't plain text.
func readSource(src []byte, list *problems) *source {
	s := &source{text: string(src)}
	content := strings.TrimPrefix(s.text, byteOrderMark)
	json := strings.HasPrefix(strings.TrimLeft(content, " \t\r\n"), "{")
	s.begins = []int{len(s.text) - len(content)}
	for i, c := range src {
		if c == '\n' {
			s.begins = append(s.begins, i+1)
		}
	}
	for _, begin := range s.begins {
		s.checkLine(begin, json, list)
	}
	return s
}

// checkLine adds problems for invisible characters, and for characters that no rule file has. In JSON, indentation
// means nothing and may consist of tabs.
func (s *source) checkLine(begin int, json bool, list *problems) {
	line := s.text[begin:s.lineEnd(begin)]
	fail := func(offset int, format string, args ...any) { list.add(begin+offset, "", format, args...) }
	if !utf8.ValidString(line) {
		i := 0
		for r, n := utf8.DecodeRuneInString(line); r != utf8.RuneError || n > 1; r, n = utf8.DecodeRuneInString(line[i:]) {
			i += n
		}
		fail(i, "the byte 0x%02x is not UTF-8: save the file as UTF-8", line[i])
		return
	}
	if i := strings.IndexFunc(line, isControl); i >= 0 {
		r, _ := utf8.DecodeRuneInString(line[i:])
		fail(i, "the control character U+%04X is not allowed here: remove it", r)
		return
	}
	content := strings.TrimLeft(line, " \t")
	if tab := strings.IndexByte(line[:len(line)-len(content)], '\t'); tab >= 0 && !json && content != "" && content[0] != '#' {
		fail(tab, "lines are indented with spaces, not with tabs")
	}
}

// line returns the index of the line with a place.
func (s *source) line(at int) int {
	i, begins := slices.BinarySearch(s.begins, at)
	if begins {
		return i
	}
	return max(i-1, 0)
}

// lineBegin, lineEnd and nextLine return where the line of a place begins, where its content ends, and where the next line
// begins.
func (s *source) lineBegin(at int) int { return s.begins[s.line(at)] }

func (s *source) lineEnd(at int) int {
	rest := s.text[at:s.nextLine(at)]
	return at + len(strings.TrimSuffix(strings.TrimSuffix(rest, "\n"), "\r"))
}

func (s *source) nextLine(at int) int {
	if next := s.line(at) + 1; next < len(s.begins) {
		return s.begins[next]
	}
	return len(s.text)
}

// dedented returns the lines from one place to the end of another place's line, without the first line's indentation.
func (s *source) dedented(from, to int) []string {
	indent := from - s.lineBegin(from)
	lines := []string{s.text[from:s.lineEnd(from)]}
	for at := s.nextLine(from); at < s.nextLine(to); at = s.nextLine(at) {
		line := s.text[at:s.lineEnd(at)]
		lines = append(lines, line[min(indent, len(line)-len(strings.TrimLeft(line, " "))):])
	}
	return lines
}

// column returns how many characters come before a place in its line.
func (s *source) column(at int) int { return utf8.RuneCountInString(s.text[s.lineBegin(at):at]) }

// isControl reports whether a character is a control character other than the tab, or invisibly breaks a line or changes its
// direction, so that a rule would mean something else than it shows.
func isControl(r rune) bool {
	return unicode.IsControl(r) && r != '\t' || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0xfeff || r == 0xfffe || r == 0xffff
}
