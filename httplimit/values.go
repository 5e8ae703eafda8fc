package httplimit

import (
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/weirhq/weir"
)

// values are headers, most of whose values stand one behind the other in a
// buffer. Those are cut from one string, and all are listed in one slice, so that a
// set of headers costs two allocations however many it has.
type values struct {
	names [maxValues]string
	known [maxValues]string // values that aren't in the buffer
	ends  [maxValues]int
	n     int
}

// maxValues is how many headers the dialects and names of one's own have at most, with one that says
// that the answer is degraded.
const maxValues = 13

// end says that the value of a header ends here.
func (v *values) end(b []byte, name string) []byte {
	v.names[v.n], v.ends[v.n] = name, len(b)
	v.n++
	return b
}

// is gives a header a value that needn't be written.
func (v *values) is(b []byte, name, value string) []byte {
	v.known[v.n] = value
	return v.end(b, name)
}

// int appends a number, unless the header has no name.
func (v *values) int(b []byte, name string, n int64) []byte {
	if name == "" {
		return b
	}
	return v.end(strconv.AppendInt(b, n, 10), name)
}

func (v *values) set(h http.Header, b []byte) {
	all, list, from := string(b), make([]string, v.n), 0
	for i, name := range v.names[:v.n] {
		if list[i] = v.known[i]; list[i] == "" {
			list[i] = all[from:v.ends[i]]
		}
		h[name] = list[i : i+1 : i+1]
		from = v.ends[i]
	}
}

// text is what headers always say of a policy.
type text struct {
	of       *weir.Policy
	limit    string    // 100
	name     string    // "orders"
	policies string    // "orders";q=100;w=60, with qu="tokens" behind q where the limit counts something other than requests
	tokens   [3]string // names of the dialect Tokens: X-Ratelimit-Limit-Tokens, -Remaining- and -Reset-
}

// texts remembers some of them, since most requests are of a few policies. A place that two
// policies share is rewritten when they take turns.
type texts [256]atomic.Pointer[text]

func (ts *texts) of(p *weir.Policy) *text {
	slot := &ts[(p.ID^uint64(p.Limit.Count)*0x9e3779b97f4a7c15)>>56] // a rule's tiers differ in their count alone
	if t := slot.Load(); t != nil && t.of == p {
		return t
	}
	name := appendQuoted(nil, p.Name)
	t := &text{of: p, limit: strconv.FormatInt(p.Limit.Count, 10), name: string(name)}
	b := append(append(name, ";q="...), t.limit...)
	switch {
	case isSlots(p):
		b = append(b, `;qu="concurrent-requests"`...)
	case p.Amount != "":
		b = appendQuoted(append(b, ";qu="...), p.Amount)
	}
	if !isSlots(p) {
		b = strconv.AppendInt(append(b, ";w="...), seconds(p.Limit.Window), 10)
	}
	t.policies, t.tokens = string(b), tokenNames(p)
	slot.Store(t)
	return t
}

// policies lists every limit, the one that binds first.
func (ts *texts) policies(v *values, b []byte, d *weir.Decision) []byte {
	first := ts.of(d.Policy).policies
	limits := d.Limits()
	if len(limits) == 1 {
		return v.is(b, hPolicy, first)
	}
	b = append(b, first...)
	for i := range limits {
		if p := limits[i].Policy; p != d.Policy && !p.Shadow {
			b = append(append(b, ", "...), ts.of(p).policies...)
		}
	}
	return v.end(b, hPolicy)
}

// appendQuota says what is left of the limit that binds.
func (ts *texts) appendQuota(b []byte, d *weir.Decision) []byte {
	b = append(append(b, ts.of(d.Policy).name...), ";r="...)
	b = strconv.AppendInt(b, d.Remaining, 10)
	next := d.ResetAfter
	if !d.Allowed {
		next = d.RetryAfter
	}
	if next < 0 || d.Allowed && isSlots(d.Policy) {
		return b // waiting doesn't help, or nobody knows how long
	}
	return strconv.AppendInt(append(b, ";t="...), seconds(next), 10)
}

// isSlots reports whether a limit counts requests in flight.
func isSlots(p *weir.Policy) bool { return p.Limit.Algorithm == weir.Concurrency }

// appendQuoted writes a structured-field string (RFC 9651). It can't hold anything
// but printable ASCII; the names of rules don't.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = append(b, '?')
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}
