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
	// text ends with a line end, which is taken away again if it was open.
	text []byte
	open bool
	// begins are the offsets of the lines.
	begins  []int
	cursor  cursor
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
		text = slices.Concat(text, []byte(e.eol))
	}
	e.text = text
	begin := 0
	if bytes.HasPrefix(text, byteOrderMark) {
		begin = len(byteOrderMark)
	}
	e.json = json.Valid(text[begin:])
	if e.json && !bytes.Contains(text, []byte(`": `)) {
		e.colon, e.comma = ":", ","
	}
	for i := begin; i < len(text); i += bytes.IndexByte(text[i:], '\n') + 1 {
		e.begins = append(e.begins, i)
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
	if !reflect.DeepEqual(r.doc, e.doc) || !maps.EqualFunc(r.expires, e.expires, time.Time.Equal) || e.json && !json.Valid(bytes.TrimPrefix(out, byteOrderMark)) {
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
		out.Write(e.text[at:max(at, c.from)])
		out.WriteString(c.with)
		at = max(at, c.to)
	}
	out.Write(e.text[at:])
	if e.open {
		return bytes.TrimSuffix(out.Bytes(), []byte(e.eol)), nil
	}
	return out.Bytes(), nil
}

func (e *editor) replace(from, to int, with string) {
	e.changes = append(e.changes, change{from, to, with})
}

// offset is where a place is in the text.
func (e *editor) offset(p place) int { return e.begins[p.line-1] + e.cursor.offset(e.src, p) }

// begin and end are the bounds of a value in the text.
func (e *editor) begin(n *node) int { return e.offset(n.first) }

func (e *editor) end(n *node) int {
	switch {
	case n.kind == scalar:
		return e.textEnd(e.begin(n), n.text)
	case n.entries() == 0:
		return e.skip(e.begin(n)+1) + 1
	}
	end := e.end(n.entry(n.entries() - 1))
	if n.flow {
		if end = e.skip(end); e.text[end] == ',' {
			end = e.skip(end + 1)
		}
		end++
	}
	return end
}

// entries is how many fields or items a value has.
func (n *node) entries() int { return len(n.fields) + len(n.items) }

// entry is the value of a field, or an item.
func (n *node) entry(i int) *node {
	if n.kind == mapping {
		return n.fields[i].value
	}
	return n.items[i]
}

// entryBegin is where a field begins with its name, or an item with its dash.
func (e *editor) entryBegin(n *node, i int) int {
	switch {
	case n.kind == mapping:
		return e.offset(n.fields[i].at)
	case n.flow:
		return e.begin(n.items[i])
	case i == 0:
		return e.begin(n)
	}
	return e.skip(e.end(n.items[i-1]))
}

// textEnd is where a scalar ends that begins at an offset.
func (e *editor) textEnd(from int, plain string) int {
	quote := e.text[from]
	if quote != '"' && quote != '\'' {
		return from + len(plain)
	}
	return from + quotedLen(e.text[from:])
}

func (e *editor) afterColon(f field) int {
	i := e.textEnd(e.offset(f.at), f.name)
	return i + bytes.IndexByte(e.text[i:], ':') + 1
}

// lineBegin, lineEnd and nextLine: where the line of an offset begins, where its content ends, and where the next one begins.
func (e *editor) lineBegin(i int) int {
	n, _ := slices.BinarySearch(e.begins, i+1)
	return e.begins[max(n, 1)-1]
}

func (e *editor) lineEnd(i int) int {
	next := e.nextLine(i)
	return i + len(bytes.TrimRight(e.text[i:next], "\r\n"))
}

func (e *editor) nextLine(i int) int {
	n, _ := slices.BinarySearch(e.begins, i+1)
	if n == len(e.begins) {
		return len(e.text)
	}
	return e.begins[n]
}

// startsLine: nothing but spaces comes before the offset in its line.
func (e *editor) startsLine(i int) bool {
	return len(bytes.Trim(e.text[e.lineBegin(i):i], " \t")) == 0
}

// endsLine: nothing but spaces and a comment comes behind the offset in its line.
func (e *editor) endsLine(i int) bool {
	rest := bytes.TrimLeft(e.text[i:e.lineEnd(i)], " \t")
	return len(rest) == 0 || rest[0] == '#'
}

// skip moves over spaces, line ends and comments.
func (e *editor) skip(i int) int {
	for i < len(e.text) {
		switch e.text[i] {
		case ' ', '\t', '\r', '\n':
			i++
		case '#':
			i = e.nextLine(i)
		default:
			return i
		}
	}
	return i
}

func indent(column int) string { return strings.Repeat(" ", max(column-1, 0)) }

// insert adds an entry to a map or a list, behind the one of the given number, and on a line of its own if that has one.
func (e *editor) insert(n *node, after int, entry string) {
	if n.entries() == 0 {
		e.replace(e.begin(n)+1, e.begin(n)+1, entry)
		return
	}
	from, to := e.entryBegin(n, after), e.end(n.entry(after))
	switch {
	case !n.flow:
		e.replace(e.nextLine(to), e.nextLine(to), indent(n.first.column)+entry+e.eol)
	case e.startsLine(from):
		e.replace(to, to, ","+e.eol+string(e.text[e.lineBegin(from):from])+entry)
	default:
		e.replace(to, to, e.comma+entry)
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

func (e *editor) appendItem(list *node, item string) {
	if !list.flow {
		item = "- " + item
	}
	e.insert(list, len(list.items)-1, item)
}

// remove takes some entries out of a map or a list that keeps others.
func (e *editor) remove(n *node, gone func(i int) bool) error {
	if n.flow {
		e.removeFlow(n, gone)
		return nil
	}
	for i := range n.entries() {
		if !gone(i) {
			continue
		}
		switch from := e.entryBegin(n, i); {
		case e.startsLine(from):
			e.replace(e.lineBegin(from), e.nextLine(e.end(n.entry(i))), "")
		case i+1 < n.entries(): // behind a dash
			e.replace(from, e.entryBegin(n, i+1), "")
		default:
			return errors.New("its only field can't be removed: write the whole document")
		}
	}
	return nil
}

// removeFlow removes entries between brackets, with their commas and, if they have lines of their own, with those.
func (e *editor) removeFlow(n *node, gone func(i int) bool) {
	last := n.entries() - 1
	kept := last // the last entry that stays
	for kept >= 0 && gone(kept) {
		kept--
	}
	before := 0 // what is left of this stays
	for i := range n.entries() {
		from, after := e.entryBegin(n, i), e.end(n.entry(i))
		if c := e.skip(after); c < len(e.text) && e.text[c] == ',' {
			after = c + 1
		}
		switch {
		case i == kept && i < last: // the comma goes with what follows
			e.replace(after-1, after, "")
		case !gone(i):
		case e.startsLine(from) && e.endsLine(after):
			e.replace(e.lineBegin(from), e.nextLine(after), "")
		case i > kept || e.endsLine(after):
			for from > before && (e.text[from-1] == ' ' || e.text[from-1] == '\t') && !e.startsLine(from) {
				from--
			}
			if e.endsLine(after) {
				after = e.lineEnd(after)
			}
			e.replace(from, after, "")
		default:
			for after < len(e.text) && (e.text[after] == ' ' || e.text[after] == '\t') {
				after++
			}
			e.replace(from, after, "")
		}
		before = after
	}
}

// emptyList takes all items out of a list on lines of its own.
func (e *editor) emptyList(f field) {
	colon := e.afterColon(f)
	e.replace(colon, colon, " []")
	e.replace(e.lineEnd(colon), e.lineEnd(e.end(f.value)), "")
}
