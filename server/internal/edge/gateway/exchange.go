package gateway

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// exchange is an admitted request and its response.
type exchange struct {
	own    http.Header // headers of the response that were set before the request was forwarded
	names  []string    // nonstandard headers that the gateway uses for limits
	theirs bool        // the response has the upstream's limits instead of the gateway's
	body   *requestBody
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// merge adds the gateway's own headers to an upstream's response. The response has the limits of
// only one limiter, the stricter one, so that a client never sees the limit of one next to the
// remaining requests of the other. Retry-After always comes from the upstream: the gateway sends
// none with admitted requests.
func (x *exchange) merge(res *http.Response) {
	x.theirs = !slices.ContainsFunc(slices.Collect(maps.Keys(x.own)), x.isLimit) || x.upstreamBinds(res)
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
		case "Access-Control-Expose-Headers", "Vary", "Set-Cookie": // lists, so add to them
			res.Header[name] = append(values[:len(values):len(values)], res.Header[name]...)
		case "Connection":
			if res.StatusCode != http.StatusSwitchingProtocols { // in a 101, Connection must be Upgrade
				res.Header[name] = values
			}
		default:
			res.Header[name] = values
		}
	}
}

// upstreamBinds reports whether the upstream's limiter refused the request, or leaves the client
// fewer requests than the gateway's.
func (x *exchange) upstreamBinds(res *http.Response) bool {
	switch {
	case res.StatusCode == http.StatusTooManyRequests, res.Header["X-Ratelimit-Rule"] != nil: // only refusals by Weir have this header
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

// restore puts the gateway's own headers into a response that the upstream didn't send.
func (x *exchange) restore(h http.Header) {
	clear(h)
	maps.Copy(h, x.own)
	if x.body.unfinished() {
		h["Connection"] = []string{"close"}
	}
}

// dropLimits removes the upstream's limits if the response has the gateway's.
func (x *exchange) dropLimits(h http.Header) {
	maps.DeleteFunc(h, func(name string, _ []string) bool {
		return !x.theirs && x.isLimit(strings.TrimPrefix(name, http.TrailerPrefix))
	})
}

func (x *exchange) isLimit(name string) bool {
	return isRateLimit(name) || slices.Contains(x.names, name)
}

// isRateLimit reports whether a header, in canonical form, is one that servers use for limits.
func isRateLimit(name string) bool {
	name, x := strings.CutPrefix(name, "X-")
	rest, ok := strings.CutPrefix(name, "Ratelimit")
	if !ok && x {
		rest, ok = strings.CutPrefix(name, "Rate-Limit")
	}
	return ok && (rest == "" || rest[0] == '-')
}

// remaining returns the number of remaining requests in a response's headers. A degraded limiter
// doesn't send it.
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

// remainingQuota returns the smallest r among the limits of a RateLimit header, such as
// "orders";r=73;t=17.
func remainingQuota(field string) (least int64, known bool) {
	parts := strings.Split(field, `"`)
	for i := 0; i < len(parts); i += 2 { // the even parts are outside of quotes
		for param := range strings.FieldsFuncSeq(parts[i], func(r rune) bool { return r == ';' || r == ',' || r == ' ' }) {
			digits, ok := strings.CutPrefix(param, "r=")
			if n, err := strconv.ParseInt(digits, 10, 64); ok && err == nil && n >= 0 && (!known || n < least) {
				least, known = n, true
			}
		}
	}
	return least, known
}
