package httplimit

import (
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

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
			f.set(t.tokens[2], untilReset(l.ResetAfter))
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

// untilReset formats a duration as 6m0s, 8.64s or 120ms, rounded up.
func untilReset(d time.Duration) string {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond).String()
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
