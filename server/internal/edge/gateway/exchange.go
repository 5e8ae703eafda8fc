package gateway

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// exchange is an admitted request and its answer.
type exchange struct {
	own    http.Header // headers of the answer that were set before the upstream was asked
	names  []string    // nonstandard headers in which the gateway states limits
	theirs bool        // the answer states the upstream's limits, not the gateway's
	body   *requestBody
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// merge puts the gateway's own headers into an upstream's answer. The answer states the limits of
// one limiter only, the one that binds, so that a client never sees one limiter's limit beside
// another's remaining requests. An upstream's Retry-After always passes: the gateway sends none with
// requests that it admits.
func (x *exchange) merge(res *http.Response) {
	x.theirs = !x.speaksOfLimits() || x.upstreamBinds(res)
	x.dropLimits(res.Header)
	x.dropLimits(res.Trailer)
	if x.body.unfinished() && res.StatusCode != http.StatusSwitchingProtocols {
		res.Header["Connection"] = []string{"close"}
	}
	for name, values := range x.own {
		if x.theirs && x.isLimit(name) {
			continue
		}
		switch name {
		case "Access-Control-Expose-Headers", "Vary", "Set-Cookie": // lists: add to them
			res.Header[name] = append(values[:len(values):len(values)], res.Header[name]...)
		case "Connection":
			if res.StatusCode != http.StatusSwitchingProtocols { // there it must say Upgrade
				res.Header[name] = values
			}
		default:
			res.Header[name] = values
		}
	}
}

// upstreamBinds reports whether the upstream's limiter refused the request, or leaves the client
// less than the gateway's.
func (x *exchange) upstreamBinds(res *http.Response) bool {
	switch {
	case res.StatusCode == http.StatusTooManyRequests, res.Header["X-Ratelimit-Rule"] != nil: // only Weir's refusals have this header
		return true
	case res.StatusCode == http.StatusServiceUnavailable && res.Header["Retry-After"] != nil:
		return true
	}
	theirs, known := remaining(res.Header)
	if !known {
		return false
	}
	ours, known := remaining(x.own)
	return known && theirs < ours || !known && x.own["X-Ratelimit-Policy"] != nil // the gateway's limiter is degraded
}

// restore puts the gateway's own headers into an answer that isn't the upstream's.
func (x *exchange) restore(h http.Header) {
	clear(h)
	maps.Copy(h, x.own)
	if x.body.unfinished() {
		h["Connection"] = []string{"close"}
	}
}

// dropLimits drops the upstream's limits if the answer states the gateway's.
func (x *exchange) dropLimits(h http.Header) {
	maps.DeleteFunc(h, func(name string, _ []string) bool {
		return !x.theirs && x.isLimit(strings.TrimPrefix(name, http.TrailerPrefix))
	})
}

func (x *exchange) speaksOfLimits() bool {
	for name := range x.own {
		if x.isLimit(name) {
			return true
		}
	}
	return false
}

func (x *exchange) isLimit(name string) bool {
	return isRateLimit(name) || slices.Contains(x.names, name)
}

// isRateLimit recognizes headers, in canonical form, in which servers state limits.
func isRateLimit(name string) bool {
	name, x := strings.CutPrefix(name, "X-")
	rest, ok := strings.CutPrefix(name, "Ratelimit")
	if !ok && x {
		rest, ok = strings.CutPrefix(name, "Rate-Limit")
	}
	return ok && (rest == "" || rest[0] == '-')
}

// remaining returns the remaining requests that headers state. A degraded limiter states none.
func remaining(h http.Header) (n int64, known bool) {
	for _, name := range [...]string{"X-Ratelimit-Remaining", "Ratelimit-Remaining"} {
		if v := h[name]; len(v) == 1 {
			n, err := strconv.ParseInt(v[0], 10, 64)
			return n, err == nil && n >= 0
		}
	}
	if v := h["Ratelimit"]; len(v) == 1 {
		return remainingQuota(v[0])
	}
	return 0, false
}

// remainingQuota returns the smallest r of the limits in a RateLimit field: "orders";r=73;t=17.
func remainingQuota(field string) (least int64, known bool) {
	parts := strings.Split(field, `"`)
	for i := 0; i < len(parts); i += 2 { // the parts outside of quotes
		for param := range strings.FieldsFuncSeq(parts[i], func(r rune) bool { return r == ';' || r == ',' || r == ' ' }) {
			digits, ok := strings.CutPrefix(param, "r=")
			if n, err := strconv.ParseInt(digits, 10, 64); ok && err == nil && n >= 0 && (!known || n < least) {
				least, known = n, true
			}
		}
	}
	return least, known
}
