package httplimit

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// fields sets header fields. Their values are in one list, to save allocations.
type fields struct {
	header http.Header
	values []string
}

// set sets a field by its canonical name, unless the name is empty.
func (f *fields) set(name, value string) {
	if name != "" {
		n := len(f.values)
		f.values = append(f.values, value)
		f.header[name] = f.values[n : n+1 : n+1]
	}
}

func (f *fields) setInt(name string, n int64) {
	if name != "" {
		f.set(name, strconv.FormatInt(n, 10))
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

// texts caches the texts of recent policies. Two policies with the same index displace each other.
type texts [256]atomic.Pointer[text]

func (ts *texts) of(p *counter.Policy) *text {
	// The policies of a rule's tiers differ only in their count.
	slot := &ts[(p.ID^uint64(p.Limit.Count)*0x9e3779b97f4a7c15)>>56]
	if t := slot.Load(); t != nil && t.of == p {
		return t
	}
	t := &text{of: p, limit: strconv.FormatInt(p.Limit.Count, 10), name: quoted(p.Name), tokens: tokenNames(p)}
	t.policies = t.name + ";q=" + t.limit
	switch {
	case isSlots(p):
		t.policies += `;qu="concurrent-requests"`
	case p.Amount != "":
		t.policies += ";qu=" + quoted(p.Amount)
	}
	if !isSlots(p) {
		t.policies += ";w=" + strconv.FormatInt(seconds(p.Limit.Window), 10)
	}
	slot.Store(t)
	return t
}

// policies returns the header RateLimit-Policy, which describes every limit, the binding one first.
func (ts *texts) policies(d *weir.Decision) string {
	all := ts.of(d.Policy).policies
	for _, l := range d.Limits() {
		if l.Policy != d.Policy && !l.Policy.Shadow {
			all += ", " + ts.of(l.Policy).policies
		}
	}
	return all
}

// quota returns the header RateLimit, which describes what is left of the binding limit.
func (ts *texts) quota(d *weir.Decision) string {
	b := make([]byte, 0, 100) // stays on the stack
	b = append(append(b, ts.of(d.Policy).name...), ";r="...)
	b = strconv.AppendInt(b, d.Remaining, 10)
	next := d.ResetAfter
	if !d.Allowed {
		next = d.RetryAfter
	}
	if next >= 0 && !(d.Allowed && isSlots(d.Policy)) { // otherwise waiting doesn't help, or the time isn't known
		b = strconv.AppendInt(append(b, ";t="...), seconds(next), 10)
	}
	return string(b)
}

// isSlots reports whether a limit counts requests in flight.
func isSlots(p *counter.Policy) bool { return p.Limit.Algorithm == weir.Concurrency }

// quoted returns a structured-field string (RFC 9651), which holds only printable ASCII. Names of
// rules are printable ASCII.
func quoted(s string) string {
	b := []byte{'"'}
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
	return string(append(b, '"'))
}

// tokenNames returns the headers of a limit in the dialect Tokens.
func tokenNames(p *counter.Policy) (names [3]string) {
	of := "requests"
	if p.Amount != "" {
		of = strings.ReplaceAll(p.Amount, "_", "-") // some servers drop headers with underscores
	}
	for i, what := range [...]string{"limit", "remaining", "reset"} {
		names[i] = http.CanonicalHeaderKey("x-ratelimit-" + what + "-" + of)
	}
	return names
}

// setTokens sets the headers of the binding limit of each amount, and of requests.
func (ts *texts) setTokens(f *fields, d *weir.Decision) {
	limits := d.Limits()
	for i := range limits {
		if l := &limits[i]; bindsTokens(limits, i) {
			t := ts.of(l.Policy)
			f.set(t.tokens[0], t.limit)
			f.setInt(t.tokens[1], l.Remaining)
			f.set(t.tokens[2], (l.ResetAfter + time.Millisecond - 1).Truncate(time.Millisecond).String())
		}
	}
}

// bindsTokens reports whether a limit is the most restrictive of those that count the same.
func bindsTokens(limits []weir.LimitStatus, i int) bool {
	l := &limits[i]
	if !countsTokens(l) {
		return false
	}
	for j := range limits {
		o := &limits[j]
		if j == i || !countsTokens(o) || o.Policy.Amount != l.Policy.Amount {
			continue
		}
		switch {
		case o.Allowed != l.Allowed:
			if l.Allowed {
				return false
			}
		case o.Left() < l.Left() || o.Left() == l.Left() && j < i:
			return false
		}
	}
	return true
}

// countsTokens reports whether a limit has headers in the dialect. Limits that weren't counted and
// concurrency limits have none.
func countsTokens(l *weir.LimitStatus) bool {
	return !l.Degraded && !l.Policy.Shadow && !isSlots(l.Policy)
}

// exposed returns the value of Access-Control-Expose-Headers.
func (a *Answerer) exposed(d *weir.Decision) string {
	if !a.tokens {
		return a.expose
	}
	all, limits := a.expose, d.Limits()
	for i := range limits {
		if bindsTokens(limits, i) {
			all += ", " + strings.Join(a.texts.of(limits[i].Policy).tokens[:], ", ")
		}
	}
	return all
}
