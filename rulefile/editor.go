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
	slices.SortStableFunc(e.changes, func(a, b change) int { return cmp.Compare(a.from, b.from) })
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
	case len(n.fields)+len(n.items) == 0:
		return e.skip(e.begin(n)+1) + 1
	}
	end := 0
	if n.kind == mapping {
		end = e.end(n.fields[len(n.fields)-1].value)
	} else {
		end = e.end(n.items[len(n.items)-1])
	}
	if n.flow {
		if end = e.skip(end); e.text[end] == ',' {
			end = e.skip(end + 1)
		}
		end++
	}
	return end
}

// dash is where the dash of an item is, in a list on lines of its own.
func (e *editor) dash(list *node, i int) int {
	if i == 0 {
		return e.begin(list)
	}
	return e.skip(e.end(list.items[i-1]))
}

// textEnd is where a scalar ends that begins at an offset.
func (e *editor) textEnd(from int, plain string) int {
	quote := e.text[from]
	if quote != '"' && quote != '\'' {
		return from + len(plain)
	}
	return from + quotedLen(e.text[from:])
}

// afterColon is behind the colon of a field.
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

// insertLine adds a line behind the one that an offset is in.
func (e *editor) insertLine(i int, line string) {
	e.replace(e.nextLine(i), e.nextLine(i), line+e.eol)
}

// removeLines removes the lines from one offset to another.
func (e *editor) removeLines(from, to int) { e.replace(e.lineBegin(from), e.nextLine(to), "") }

func indent(column int) string { return strings.Repeat(" ", max(column-1, 0)) }

// insertField adds a field to a map, behind its field of the given number. The value may begin on a line of its own.
func (e *editor) insertField(m *node, after int, name, value string) {
	entry := e.scalar(name, 0) + e.colon + value
	if strings.HasPrefix(value, e.eol) {
		entry = e.scalar(name, 0) + ":" + value
	}
	switch {
	case !m.flow:
		e.insertLine(e.end(m.fields[after].value), indent(m.fields[0].at.column)+entry)
	case len(m.fields) == 0:
		e.replace(e.begin(m)+1, e.begin(m)+1, entry)
	default:
		e.insertFlow(e.offset(m.fields[after].at), e.end(m.fields[after].value), entry)
	}
}

// insertFlow adds an entry between brackets, behind another one, on a line of its own if that has one.
func (e *editor) insertFlow(from, to int, entry string) {
	if e.startsLine(from) {
		begin := e.lineBegin(from)
		e.replace(to, to, ","+e.eol+string(e.text[begin:from])+entry)
		return
	}
	e.replace(to, to, e.comma+entry)
}

// removeField removes a field from a map that has others.
func (e *editor) removeField(m *node, i int) error {
	if m.flow {
		e.removeFlow(len(m.fields), func(j int) (int, int) {
			return e.offset(m.fields[j].at), e.end(m.fields[j].value)
		}, func(j int) bool { return j == i })
		return nil
	}
	from, to := e.offset(m.fields[i].at), e.end(m.fields[i].value)
	switch {
	case e.startsLine(from):
		e.removeLines(from, to)
	case i+1 < len(m.fields): // behind a dash
		e.replace(from, e.offset(m.fields[i+1].at), "")
	default:
		return errors.New("its only field can't be removed: write the whole document")
	}
	return nil
}

// removeItems removes items from the list that a field holds.
func (e *editor) removeItems(f field, gone func(i int) bool) {
	list := f.value
	if list.flow {
		e.removeFlow(len(list.items), func(i int) (int, int) { return e.begin(list.items[i]), e.end(list.items[i]) }, gone)
		return
	}
	for i, item := range list.items {
		if gone(i) {
			e.removeLines(e.dash(list, i), e.end(item))
		}
	}
}

// emptyList takes all items out of a list on lines of its own.
func (e *editor) emptyList(f field) {
	colon := e.afterColon(f)
	e.replace(colon, colon, " []")
	e.replace(e.lineEnd(colon), e.lineEnd(e.end(f.value)), "")
}

// removeFlow removes some of the n entries between brackets, with their commas
// and, if they have lines of their own, with those.
func (e *editor) removeFlow(n int, span func(i int) (from, to int), gone func(i int) bool) {
	kept := n - 1 // the last entry that stays
	for kept >= 0 && gone(kept) {
		kept--
	}
	before := 0 // what is left of this stays
	for i := range n {
		from, to := span(i)
		after := to
		if c := e.skip(to); c < len(e.text) && e.text[c] == ',' {
			after = c + 1
		}
		switch {
		case i == kept && i < n-1: // the comma goes with what follows
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

// appendItem adds an item to a list.
func (e *editor) appendItem(list *node, item string) {
	last := len(list.items) - 1
	switch {
	case !list.flow:
		e.insertLine(e.end(list.items[last]), indent(list.first.column)+"- "+item)
	case last < 0:
		e.replace(e.begin(list)+1, e.begin(list)+1, item)
	default:
		e.insertFlow(e.begin(list.items[last]), e.end(list.items[last]), item)
	}
}
