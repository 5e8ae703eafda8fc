package rulefile

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// place is a position in the text. Both numbers count from 1, columns in characters.
type place struct{ line, column int }

// source is the text of a rule file.
type source struct {
	// lines are the lines as they were written, for excerpts.
	lines []string
	// text is what the YAML lexer gets to see. Every character of the language
	// stands at the same line and column as in lines.
	text string
}

// What the lexer takes more than linear time or memory for is bounded before it starts.
const (
	// maxMarks bounds how many tokens a text can have: each takes some 200
	// bytes while the file is read. A file with 10,000 overrides has about 100,000.
	maxMarks = 250_000
	// maxBlank and maxAngles bound runs of blank lines and of "<", which cost their square.
	maxBlank  = 8
	maxAngles = 16
)

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
	var text strings.Builder
	text.Grow(len(src))
	blank, marks, end := 0, 0, 0
	for i, line := range s.lines {
		line = strings.TrimSuffix(line, "\r")
		s.lines[i] = line
		clean := cleanLine(line, i+1, json, list)
		if clean == "" {
			// A comment breaks a long run of blank lines and means the same.
			if blank++; blank%maxBlank == 0 {
				clean = "#"
			}
		} else {
			blank = 0
		}
		if marks += countMarks(clean); marks > maxMarks {
			list.add(place{i + 1, 1}, "", "is too large: a rule file has at most %d lines and punctuation marks", maxMarks)
			return s
		}
		text.WriteString(clean)
		text.WriteByte('\n')
		if blank == 0 {
			end = text.Len()
		}
	}
	s.text = text.String()[:end]
	return s
}

// cleanLine checks one line and returns it for the lexer: tabs have become
// spaces, since the lexer loses count of columns behind them, and a line
// without content is "". In JSON, indentation means nothing and may be of tabs.
func cleanLine(line string, number int, json bool, list *problems) string {
	at := func(offset int) place { return place{number, utf8.RuneCountInString(line[:offset]) + 1} }
	if !utf8.ValidString(line) {
		i := 0
		for {
			r, n := utf8.DecodeRuneInString(line[i:])
			if r == utf8.RuneError && n <= 1 {
				break
			}
			i += n
		}
		list.add(at(i), "", "the byte 0x%02x is not UTF-8: save the file as UTF-8", line[i])
		return ""
	}
	if i := strings.IndexFunc(line, isControl); i >= 0 {
		r, _ := utf8.DecodeRuneInString(line[i:])
		list.add(at(i), "", "%s is not allowed here: remove it", controlName(r))
		return ""
	}
	line = strings.TrimRight(line, " \t") // the lexer counts what stands there to the value before it
	content := strings.TrimLeft(line, " \t")
	indent := len(line) - len(content)
	if content == "" {
		return ""
	}
	if content[0] == '#' {
		return strings.ReplaceAll(line, "\t", " ")
	}
	if i := strings.IndexByte(line[:indent], '\t'); i >= 0 && !json {
		list.add(at(i), "", "lines are indented with spaces, not with tabs")
		return ""
	}
	if strings.HasPrefix(line, "<<<<<<< ") || strings.HasPrefix(line, ">>>>>>> ") {
		list.add(at(0), "", "a merge conflict was left in the file: keep one of the two sides")
		return ""
	}
	if rest, ok := strings.CutPrefix(line, "..."); ok && rest != "" && rest[0] != ' ' {
		list.add(at(0), "", "text that begins with ... must be quoted")
		return ""
	}
	if i := strings.Index(line, strings.Repeat("<", maxAngles)); i >= 0 {
		list.add(at(i), "", `no value holds so many "<"`)
		return ""
	}
	if tab := strings.LastIndexByte(line, '\t'); tab >= 0 {
		// Between quotes a tab is part of the value, and nobody can see it there.
		first, last := strings.IndexAny(line, `"'`), strings.LastIndexAny(line, `"'`)
		if inside := strings.IndexByte(line[max(first, 0):], '\t'); first >= 0 && inside >= 0 && first+inside < last {
			list.add(at(first+inside), "", "write a space in place of this tab")
			return ""
		}
		line = strings.ReplaceAll(line, "\t", " ")
	}
	return line
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
	return r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0xfeff
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

// isMark holds the characters that can begin or end a token.
var isMark = func() (marks [256]bool) {
	for _, c := range []byte("[]{},:-?#&*!|>%@`'\"") {
		marks[c] = true
	}
	return marks
}()

// countMarks bounds the number of tokens that a line can become: there are at most twice as many.
func countMarks(line string) int {
	n := 1
	for i := range len(line) {
		if isMark[line[i]] {
			n++
		}
	}
	return n
}
