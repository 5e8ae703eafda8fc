package rulefile

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/weirhq/weir/internal/shown"
)

// Problem is something wrong with a rule file, and its place. Its fields are for programs and for JSON; its
// String is for people.
type Problem struct {
	// File is the name of the file, as it was given to [Parse].
	File string `json:"file"`
	// Line and Column count from 1, the column in characters. Line is 0 if the problem concerns the whole
	// file.
	Line   int `json:"line"`
	Column int `json:"column"`
	// Path is the path of the fault: rules[2].match.endpoint. It is "" if the text can't be parsed that far.
	Path string `json:"path,omitempty"`
	// Rule is the id of the rule that the fault is in, if it has one.
	Rule string `json:"rule,omitempty"`
	// Text says which rule of the language is broken and what is allowed.
	Text string `json:"text"`
	// Hint is a guess at what was meant, or "".
	Hint string `json:"hint,omitempty"`
	// Excerpt is the line with the fault, or the part of a long line around it. Caret is how many of its
	// characters come before the fault.
	Excerpt string `json:"excerpt,omitempty"`
	Caret   int    `json:"caret"`

	at int // the place in the text
}

// String returns the problem on one line, without the excerpt:
//
//	rules.yaml:14:12: rules[2] "login": limit: must be at least 1, got 0
func (p Problem) String() string {
	s := p.headline()
	if p.Hint != "" {
		s += "; " + p.Hint
	}
	return s
}

func (p Problem) headline() string {
	place, path, rule := p.File, p.Path, ""
	if p.Line > 0 {
		place += fmt.Sprintf(":%d:%d", p.Line, p.Column)
	}
	if p.Rule != "" {
		if end := strings.IndexByte(path, ']') + 1; end > 0 {
			rule = fmt.Sprintf("%s %q", path[:end], p.Rule)
			path = strings.TrimPrefix(path[end:], ".")
		}
	}
	parts := []string{place, rule, shown.Clip(path, 200), p.Text}
	// A warning about something outside the rules, such as the emergency list, has no file.
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
}

// Long returns the problem as a compiler would: the line that String returns,
// then the source with a caret under the fault, and the hint beside it.
func (p Problem) Long() string {
	if p.Excerpt == "" {
		return p.String()
	}
	number := strconv.Itoa(p.Line)
	margin := strings.Repeat(" ", len(number))
	caret := strings.Repeat(" ", p.Caret) + "^"
	if p.Hint != "" {
		caret += " " + p.Hint
	}
	return fmt.Sprintf("%s\n  %s | %s\n  %s | %s", p.headline(), number, p.Excerpt, margin, caret)
}

// Problems is the error of [Parse]: everything that is wrong with a file, in its order.
type Problems []Problem

// maxPrinted is how many problems Error shows. People fix those first, and run the check again.
const maxPrinted = 20

// Error returns the first problems in their long form, and how many more there are.
func (ps Problems) Error() string {
	var b strings.Builder
	for i, p := range ps {
		if i == maxPrinted {
			fmt.Fprintf(&b, "\nand %d more", len(ps)-i)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p.Long())
	}
	return b.String()
}

// maxCollected bounds how many problems of a hostile file are kept in memory.
const maxCollected = 1000

// problems collects the problems that are found in a file.
type problems struct {
	file string
	ids  []string // the ids of the rules, as far as they are known
	list Problems
}

func (ps *problems) any() bool { return len(ps.list) > 0 }

// full reports whether further problems are dropped, so that callers needn't work on them.
func (ps *problems) full() bool { return len(ps.list) >= maxCollected }

// add adds a problem and returns it, so that the caller can set its hint.
func (ps *problems) add(at int, path, format string, args ...any) *Problem {
	if ps.full() {
		return new(Problem)
	}
	ps.list = append(ps.list, Problem{File: ps.file, Path: path, Text: shown.Clip(fmt.Sprintf(format, args...), 1000), at: at})
	return &ps.list[len(ps.list)-1]
}

// sorted returns the problems in the order of the file, with excerpts and with masked keys.
func (ps *problems) sorted(src *source) Problems {
	if len(ps.list) == 0 {
		return nil
	}
	slices.SortStableFunc(ps.list, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.at, b.at), strings.Compare(a.Path, b.Path))
	})
	h, rule := newHidden(src), 0
	for i := range ps.list {
		p := &ps.list[i]
		h.mask(p)
		if p.at != nowhere {
			p.Line, p.Column = src.line(p.at)+1, src.column(p.at)+1
			p.Excerpt, p.Caret = excerpt(h.line(p.at))
		}
		if _, err := fmt.Sscanf(p.Path, "rules[%d]", &rule); err == nil && rule >= 0 && rule < len(ps.ids) {
			p.Rule = shorten(ps.ids[rule])
		}
	}
	return ps.list
}

// excerptWidth is how many characters of a line are shown at most, before the fault and from it on.
const excerptWidth = 80

// excerpt returns the printable part of a line around an offset, and how many of its characters come before
// the offset.
func excerpt(line string, offset int) (string, int) {
	before, after := line[:offset], shown.Clip(strings.TrimRight(line[offset:], " \t"), excerptWidth)
	if last := shown.Last(before, excerptWidth); len(last) < len(before) {
		before = "…" + last
	}
	return shown.Printable(before + after), utf8.RuneCountInString(before)
}

// maxListed is how many names a message lists.
const maxListed = 10

// listed joins names, up to as many as people read.
func listed(names []string) string {
	list := shown.Clip(strings.Join(names[:min(len(names), maxListed)], ", "), 1000)
	if len(names) > maxListed {
		list += fmt.Sprintf(" and %d more", len(names)-maxListed)
	}
	return list
}
