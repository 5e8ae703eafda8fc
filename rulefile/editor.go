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

// editor changes a text in single places, found by the tree that was read from
// it, so that all the rest stays as people wrote it.
type editor struct {
	*reading
	// open: the text had no line end, and has one while it is edited.
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
	e := &editor{reading: r, eol: "\n", colon: ": ", comma: ", "}
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

// result returns the text with its changes, once it has been read again and
// means what the document has been made to mean.
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
	// What is inserted where something else begins that is removed stands before it.
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

// startsLine: nothing but spaces comes before the place in its line.
func (e *editor) startsLine(at int) bool {
	return strings.Trim(e.src.text[e.src.lineBegin(at):at], " \t") == ""
}

// endsLine: nothing but spaces and a comment comes behind the place in its line.
func (e *editor) endsLine(at int) bool {
	rest := strings.TrimLeft(e.src.text[at:e.src.lineEnd(at)], " \t")
	return rest == "" || rest[0] == '#'
}

// skip moves over spaces, line ends and comments.
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

// indent is as much space as stands before a place in its line, and n more.
func (e *editor) indent(at, n int) string { return strings.Repeat(" ", at-e.src.lineBegin(at)+n) }

// insert adds a child to a map or a list, behind the one of the given index, and on a line of its own if that has one.
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

// insertField adds a field to a map. The value may begin on a line of its own.
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

// remove takes some children out of a map or a list that keeps others.
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
		case i+1 < len(n.children): // behind a dash
			e.replace(c.at, n.children[i+1].at, "")
		default:
			return errors.New("its only field can't be removed: write the whole document")
		}
	}
	return nil
}

// removeFlow removes what stands between brackets, with the commas and, if it has lines of its own, with those.
func (e *editor) removeFlow(n *node, gone func(i int) bool) {
	text, last := e.src.text, len(n.children)-1
	kept := last // the last child that stays
	for kept >= 0 && gone(kept) {
		kept--
	}
	before := 0 // what is left of this stays
	for i, c := range n.children {
		from, after := c.at, c.value.to
		if comma := e.skip(after); text[comma] == ',' {
			after = comma + 1
		}
		switch {
		case i == kept && i < last: // the comma goes with what follows
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

// emptyList takes all items out of a list on lines of its own.
func (e *editor) emptyList(f child) {
	e.replace(f.colon, f.colon, " []")
	e.replace(e.src.lineEnd(f.colon), e.src.lineEnd(f.value.to), "")
}
