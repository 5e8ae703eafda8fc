package httplimit

import (
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// values collects headers to set. Most values follow each other in one buffer, are cut from one
// string, and are listed in one slice, so that setting any number of headers costs two allocations.
type values struct {
	names [maxValues]string
	known [maxValues]string // values that aren't in the buffer
	ends  [maxValues]int
	n     int
}

// maxValues is the most headers that all dialects and own names have together.
const maxValues = 13

// end ends the value of a header in the buffer.
func (v *values) end(b []byte, name string) []byte {
	v.names[v.n], v.ends[v.n] = name, len(b)
	v.n++
	return b
}

// is sets a header to an existing string.
func (v *values) is(b []byte, name, value string) []byte {
	v.known[v.n] = value
	return v.end(b, name)
}

// int appends a header with a number, unless its name is empty.
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

// text holds the parts of headers that depend on a policy alone.
type text struct {
	of       *counter.Policy
	limit    string    // 100
	name     string    // "orders"
	policies string    // "orders";q=100;w=60, with ;qu="tokens" after q if the limit doesn't count requests
	tokens   [3]string // headers of the dialect Tokens
}

// texts caches the texts of recent policies. Two policies that share a place displace each other.
type texts [256]atomic.Pointer[text]

func (ts *texts) of(p *counter.Policy) *text {
	// tiers of a rule differ only in their count
	slot := &ts[(p.ID^uint64(p.Limit.Count)*0x9e3779b97f4a7c15)>>56]
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

// policies appends every limit, the binding one first.
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

// appendQuota appends what is left of the binding limit.
func (ts *texts) appendQuota(b []byte, d *weir.Decision) []byte {
	b = append(append(b, ts.of(d.Policy).name...), ";r="...)
	b = strconv.AppendInt(b, d.Remaining, 10)
	next := d.ResetAfter
	if !d.Allowed {
		next = d.RetryAfter
	}
	if next < 0 || d.Allowed && isSlots(d.Policy) {
		return b // waiting doesn't help, or its length isn't known
	}
	return strconv.AppendInt(append(b, ";t="...), seconds(next), 10)
}

// isSlots reports whether a limit counts requests in flight.
func isSlots(p *counter.Policy) bool { return p.Limit.Algorithm == weir.Concurrency }

// appendQuoted appends a structured-field string (RFC 9651), which holds only printable ASCII.
// Names of rules are printable ASCII.
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
