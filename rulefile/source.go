package rulefile

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// place is a position in the text. Both numbers count from 1, columns in characters.
type place struct{ line, column int }

// source is the text of a rule file, line by line and without line ends.
type source struct {
	lines   []string
	secrets []secret // in no order
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// readSource splits text into lines and refuses what isn't plain text.
func readSource(src []byte, list *problems) *source {
	src = bytes.TrimPrefix(src, byteOrderMark)
	if bytes.HasPrefix(src, []byte("\xff\xfe")) || bytes.HasPrefix(src, []byte("\xfe\xff")) {
		list.add(place{}, "", "is UTF-16 text: save it as UTF-8")
		return &source{}
	}
	s := &source{lines: strings.Split(string(src), "\n")}
	json := bytes.HasPrefix(bytes.TrimLeft(src, " \t\r\n"), []byte("{"))
	for i, line := range s.lines {
		s.lines[i] = strings.TrimSuffix(line, "\r")
		s.checkLine(i+1, json, list)
	}
	return s
}

// checkLine refuses what can't be seen, and what no rule file has. In JSON,
// indentation means nothing and may be of tabs.
func (s *source) checkLine(number int, json bool, list *problems) {
	line := s.lines[number-1]
	fail := func(offset int, format string, args ...any) {
		list.add(place{number, utf8.RuneCountInString(line[:offset]) + 1}, "", format, args...)
	}
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
		fail(i, "%s is not allowed here: remove it", controlName(r))
		return
	}
	content := strings.TrimLeft(line, " \t")
	if tab := strings.IndexByte(line[:len(line)-len(content)], '\t'); tab >= 0 && !json && content != "" && content[0] != '#' {
		fail(tab, "lines are indented with spaces, not with tabs")
	}
	if strings.HasPrefix(line, "<<<<<<< ") || strings.HasPrefix(line, ">>>>>>> ") {
		fail(0, "a merge conflict was left in the file: keep one of the two sides")
	}
}

// cursor finds characters in the lines of a text. It remembers a line, so that
// many places in one long line cost no more than its length.
type cursor struct {
	line int
	// offsets of the line's characters, or nil if each is a byte.
	offsets []int
}

// offset is where a place is in its line, or the line's end if there is no such column.
func (c *cursor) offset(s *source, p place) int {
	line := s.lines[p.line-1]
	if c.line != p.line {
		*c = cursor{line: p.line}
		if utf8.RuneCountInString(line) < len(line) {
			for i := range line {
				c.offsets = append(c.offsets, i)
			}
		}
	}
	switch i := p.column - 1; {
	case c.offsets == nil:
		return min(i, len(line))
	case i < len(c.offsets):
		return c.offsets[i]
	}
	return len(line)
}

// isControl: control characters but the tab, and what breaks or turns around a
// line without being seen, so that a rule would say something else than it shows.
func isControl(r rune) bool {
	switch {
	case r < ' ':
		return r != '\t'
	case r < 0x2028:
		return r >= 0x7f && r < 0xa0
	}
	return r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0xfeff || r == 0xfffe || r == 0xffff
}

func controlName(r rune) string {
	switch r {
	case 0:
		return "a NUL character"
	case '\r':
		return "a carriage return without a line feed"
	case 0x1b:
		return "an escape character"
	}
	return fmt.Sprintf("the control character U+%04X", r)
}
