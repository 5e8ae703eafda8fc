package rulefile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// editor changes single places of a text, which it finds by the text's tree. The rest stays as people wrote it.
type editor struct {
	*decoder
	// open means that the text's last line had no line break. It has one while the text is edited.
	open    bool
	json    bool
	eol     string
	colon   string // between a name and its value
	comma   string // between values on one line
	changes []change
}

// change replaces a part of the text.
type change struct {
	from, to int
	with     string
}

func edit(text []byte) (*editor, error) {
	r, err := read("rules", text)
	if err != nil {
		return nil, err
	}
	if r.any() {
		return nil, r.sorted(r.src)
	}
	e := &editor{decoder: r, eol: "\n", colon: ": ", comma: ", "}
	if first := bytes.IndexByte(text, '\n'); first > 0 && text[first-1] == '\r' {
		e.eol = "\r\n"
	}
	if e.open = !bytes.HasSuffix(text, []byte("\n")); e.open {
		e.src.text += e.eol
	}
	e.json = json.Valid([]byte(strings.TrimPrefix(e.src.text, byteOrderMark)))
	if e.json && !strings.Contains(e.src.text, `": `) {
		e.colon, e.comma = ":", ","
	}
	return e, nil
}

// result returns the changed text. It parses that text again, and returns an error if it doesn't mean what the edited
// document means.
func (e *editor) result() ([]byte, error) {
	out, err := e.apply()
	if err != nil {
		return nil, err
	}
	r, err := read("rules", out)
	if err != nil {
		return nil, err
	}
	if _, err := r.file(time.Time{}); err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(r.doc, e.doc) || !maps.EqualFunc(r.expires, e.expires, time.Time.Equal) || e.json && !json.Valid(bytes.TrimPrefix(out, []byte(byteOrderMark))) {
		return nil, errors.New("can't be changed in place, since something else would change with it: write the whole document")
	}
	return out, nil
}

func (e *editor) apply() ([]byte, error) {
	// An insertion stands before a removal that begins at the same place.
	slices.SortStableFunc(e.changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to)) })
	var out bytes.Buffer
	at := 0
	for _, c := range e.changes {
		if c.from < at && c.with != "" {
			return nil, fmt.Errorf("two changes at byte %d: write the whole document", c.from)
		}
		out.WriteString(e.src.text[at:max(at, c.from)])
		out.WriteString(c.with)
		at = max(at, c.to)
	}
	out.WriteString(e.src.text[at:])
	if e.open {
		return bytes.TrimSuffix(out.Bytes(), []byte(e.eol)), nil
	}
	return out.Bytes(), nil
}

func (e *editor) replace(from, to int, with string) {
	e.changes = append(e.changes, change{from, to, with})
}

// startsLine reports whether nothing but spaces comes before the place in its line.
func (e *editor) startsLine(at int) bool {
	return strings.Trim(e.src.text[e.src.lineBegin(at):at], " \t") == ""
}

// endsLine reports whether nothing but spaces and a comment follows the place in its line.
func (e *editor) endsLine(at int) bool {
	rest := strings.TrimLeft(e.src.text[at:e.src.lineEnd(at)], " \t")
	return rest == "" || rest[0] == '#'
}

// skip returns the next place that isn't a space, a line end or a comment.
func (e *editor) skip(at int) int {
	for at < len(e.src.text) {
		switch e.src.text[at] {
		case ' ', '\t', '\r', '\n':
			at++
		case '#':
			at = e.src.nextLine(at)
		default:
			return at
		}
	}
	return at
}

// indent returns as many spaces as there are bytes before the place in its line, and n more.
func (e *editor) indent(at, n int) string { return strings.Repeat(" ", at-e.src.lineBegin(at)+n) }

// insert adds a child to a map or a list, behind the child with the given index. If that child has its own line, so
// has the new one.
func (e *editor) insert(n *node, after int, text string) {
	if len(n.children) == 0 {
		e.replace(n.from+1, n.from+1, text)
		return
	}
	from, to := n.children[after].at, n.children[after].value.to
	switch {
	case !n.flow:
		e.replace(e.src.nextLine(to), e.src.nextLine(to), e.indent(n.from, 0)+text+e.eol)
	case e.startsLine(from):
		e.replace(to, to, ","+e.eol+e.src.text[e.src.lineBegin(from):from]+text)
	default:
		e.replace(to, to, e.comma+text)
	}
}

// insertField adds a field to a map, behind the field with the given index. The value may begin on a line of its own.
func (e *editor) insertField(m *node, after int, name, value string) {
	colon := e.colon
	if strings.HasPrefix(value, e.eol) {
		colon = ":"
	}
	e.insert(m, after, e.scalar(name, 0)+colon+value)
}

// appendField adds a field at the end of a map.
func (e *editor) appendField(m *node, name, value string) {
	e.insertField(m, len(m.children)-1, name, value)
}

func (e *editor) appendItem(list *node, item string) {
	if !list.flow {
		item = "- " + item
	}
	e.insert(list, len(list.children)-1, item)
}

// remove removes some of the children of a map or a list. Others must remain.
func (e *editor) remove(n *node, gone func(i int) bool) error {
	if n.flow {
		e.removeFlow(n, gone)
		return nil
	}
	for i, c := range n.children {
		switch {
		case !gone(i):
		case e.startsLine(c.at):
			e.replace(e.src.lineBegin(c.at), e.src.nextLine(c.value.to), "")
		case i+1 < len(n.children): // the field follows a list's dash
			e.replace(c.at, n.children[i+1].at, "")
		default:
			return errors.New("its only field can't be removed: write the whole document")
		}
	}
	return nil
}

// removeFlow removes children between brackets, with their commas, and with their lines if they have lines of their
// own.
func (e *editor) removeFlow(n *node, gone func(i int) bool) {
	text, last := e.src.text, len(n.children)-1
	kept := last // the last child that stays
	for kept >= 0 && gone(kept) {
		kept--
	}
	before := 0 // text before this place stays
	for i, c := range n.children {
		from, after := c.at, c.value.to
		if comma := e.skip(after); text[comma] == ',' {
			after = comma + 1
		}
		switch {
		case i == kept && i < last: // the comma goes with the children behind it
			e.replace(after-1, after, "")
		case !gone(i):
		case e.startsLine(from) && e.endsLine(after):
			e.replace(e.src.lineBegin(from), e.src.nextLine(after), "")
		case i > kept || e.endsLine(after):
			if !e.startsLine(from) {
				from = max(before, len(strings.TrimRight(text[:from], " \t")))
			}
			if e.endsLine(after) {
				after = e.src.lineEnd(after)
			}
			e.replace(from, after, "")
		default:
			e.replace(from, len(text)-len(strings.TrimLeft(text[after:], " \t")), "")
		}
		before = after
	}
}
