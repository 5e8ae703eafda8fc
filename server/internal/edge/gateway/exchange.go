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
	names  []string    // nonstandard headers in which the gateway sends limits
	theirs bool        // the response has the upstream's limits, and not the gateway's
	body   *requestBody
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// merge adds the gateway's own headers to an upstream's response. The response gets the limit headers of only one
// limiter, the stricter one. Otherwise a client could see the limit of one limiter together with the remaining requests
// of the other. Retry-After always comes from the upstream, because the gateway doesn't send it with admitted requests.
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
		case "Access-Control-Expose-Headers", "Vary", "Set-Cookie": // these are lists, so keep both
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

// upstreamBinds reports whether the upstream's limiter is stricter: it has refused the request, or leaves the client
// fewer requests than the gateway's limiter.
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
	return known && theirs < ours || !known && x.own["X-Ratelimit-Policy"] != nil // in the second case, the gateway's limiter is degraded
}

// restore sets the gateway's own headers in a response that doesn't come from the upstream.
func (x *exchange) restore(h http.Header) {
	clear(h)
	maps.Copy(h, x.own)
	if x.body.unfinished() {
		h["Connection"] = []string{"close"}
	}
}

// dropLimits removes the upstream's limit headers if the response has the gateway's.
func (x *exchange) dropLimits(h http.Header) {
	maps.DeleteFunc(h, func(name string, _ []string) bool {
		return !x.theirs && x.isLimit(strings.TrimPrefix(name, http.TrailerPrefix))
	})
}

func (x *exchange) isLimit(name string) bool {
	return isRateLimit(name) || slices.Contains(x.names, name)
}

// isRateLimit reports whether servers send limits in a header with this name, which must be in canonical form.
func isRateLimit(name string) bool {
	name, x := strings.CutPrefix(name, "X-")
	rest, ok := strings.CutPrefix(name, "Ratelimit")
	if !ok && x {
		rest, ok = strings.CutPrefix(name, "Rate-Limit")
	}
	return ok && (rest == "" || rest[0] == '-')
}

// remaining returns the number of remaining requests according to a response's headers. known is false if the headers
// don't say, for example because the limiter is degraded.
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

// remainingQuota returns the smallest r among the limits in a RateLimit header, such as "orders";r=73;t=17.
func remainingQuota(field string) (least int64, known bool) {
	parts := strings.Split(field, `"`)
	for i := 0; i < len(parts); i += 2 { // the parts with even indexes are outside of quotes
		for param := range strings.FieldsFuncSeq(parts[i], func(r rune) bool { return r == ';' || r == ',' || r == ' ' }) {
			digits, ok := strings.CutPrefix(param, "r=")
			if n, err := strconv.ParseInt(digits, 10, 64); ok && err == nil && n >= 0 && (!known || n < least) {
				least, known = n, true
			}
		}
	}
	return least, known
}
