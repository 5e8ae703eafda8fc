package httplimit

import (
	"net/http"
	"strconv"

	"github.com/weirhq/weir"
)

// valueWriter collects header values. They are cut from one string and listed in
// one slice, so that a set of headers costs two allocations however many it has.
type valueWriter struct {
	buf   []byte
	marks [maxValues]mark
	n     int
	from  int
}

// maxValues is how many headers the dialects and names of one's own have at most.
const maxValues = 12

type mark struct {
	name     string
	from, to int
}

func (w *valueWriter) begin() { w.from = len(w.buf) }

func (w *valueWriter) end(name string) {
	w.marks[w.n] = mark{name, w.from, len(w.buf)}
	w.n++
}

// int writes a number, unless the header has no name.
func (w *valueWriter) int(name string, v int64) {
	if name == "" {
		return
	}
	w.begin()
	w.buf = strconv.AppendInt(w.buf, v, 10)
	w.end(name)
}

func (w *valueWriter) text(name, v string) {
	w.begin()
	w.buf = append(w.buf, v...)
	w.end(name)
}

// quoted writes a structured-field string (RFC 9651). It can't hold anything but
// printable ASCII; the names of rules don't.
func (w *valueWriter) quoted(s string) {
	w.buf = append(w.buf, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			w.buf = append(w.buf, '\\', c)
		case c < ' ' || c > '~':
			w.buf = append(w.buf, '?')
		default:
			w.buf = append(w.buf, c)
		}
	}
	w.buf = append(w.buf, '"')
}

func (w *valueWriter) param(name string, v int64) {
	w.buf = strconv.AppendInt(append(w.buf, name...), v, 10)
}

// policies lists every limit, the one that binds first.
func (w *valueWriter) policies(d *weir.Decision) {
	w.begin()
	w.policy(d.Policy)
	for _, l := range d.Limits() {
		if l.Policy != d.Policy && !l.Policy.Shadow {
			w.buf = append(w.buf, ", "...)
			w.policy(l.Policy)
		}
	}
	w.end(hPolicy)
}

func (w *valueWriter) policy(p *weir.Policy) {
	w.quoted(p.Name)
	w.param(";q=", p.Limit.Count)
	w.param(";w=", seconds(p.Limit.Window))
}

// quota is what is left of the limit that binds.
func (w *valueWriter) quota(d *weir.Decision) {
	w.begin()
	w.quoted(d.Policy.Name)
	w.param(";r=", d.Remaining)
	next := d.ResetAfter
	if !d.Allowed {
		next = d.RetryAfter
	}
	if next >= 0 { // else waiting doesn't help
		w.param(";t=", seconds(next))
	}
	w.end(hIETF)
}

func (w *valueWriter) flush(h http.Header) {
	all := string(w.buf)
	values := make([]string, w.n)
	for i, m := range w.marks[:w.n] {
		values[i] = all[m.from:m.to]
		h[m.name] = values[i : i+1 : i+1]
	}
}
