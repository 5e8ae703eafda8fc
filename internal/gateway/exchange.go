package gateway

import (
	"net/http"
	"strings"
)

// exchange is one admitted request and its answer, as far as the gateway has a say in them.
type exchange struct {
	own  http.Header  // what stands in the answer before the upstream is asked
	body *requestBody // nil without one
}

type exchangeKey struct{}

// exchangeOf finds the exchange of a request that forward made.
func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// merge puts the gateway's own headers into an upstream's answer.
//
// An answer tells one story about limits, and it is Weir's: if the limiter has
// something to say, every rate-limit header of the upstream is dropped, whatever
// dialect it is in. If no limit applies, the upstream's pass, and
// so does its Retry-After, always: the limiter sends none with what it admits.
func (x *exchange) merge(res *http.Response) {
	if x.speaksOfLimits() {
		for name := range res.Header {
			if isRateLimit(name) {
				delete(res.Header, name)
			}
		}
		for name := range res.Trailer {
			if isRateLimit(name) {
				delete(res.Trailer, name)
			}
		}
	}
	if x.body.unfinished() && res.StatusCode != http.StatusSwitchingProtocols {
		res.Header["Connection"] = []string{"close"}
	}
	for name, values := range x.own {
		switch name {
		case "Access-Control-Expose-Headers", "Vary", "Set-Cookie": // lists, which grow
			res.Header[name] = append(values[:len(values):len(values)], res.Header[name]...)
		case "Connection":
			if res.StatusCode != http.StatusSwitchingProtocols { // where it says Upgrade, and must
				res.Header[name] = values
			}
		default:
			res.Header[name] = values
		}
	}
}

// restore puts the gateway's own headers into an answer that isn't the upstream's.
func (x *exchange) restore(h http.Header) {
	clear(h)
	for name, values := range x.own {
		h[name] = values
	}
	if x.body.unfinished() {
		h["Connection"] = []string{"close"}
	}
}

// dropTrailers drops the rate-limit fields that an upstream sent behind its
// answer: those of the answer's head are out, and two would contradict each other.
func (x *exchange) dropTrailers(h http.Header) {
	if !x.speaksOfLimits() {
		return
	}
	for name := range h {
		if isRateLimit(strings.TrimPrefix(name, http.TrailerPrefix)) {
			delete(h, name)
		}
	}
}

func (x *exchange) speaksOfLimits() bool {
	for name := range x.own {
		if isRateLimit(name) {
			return true
		}
	}
	return false
}

// isRateLimit recognizes the headers, in canonical form, in which servers state limits.
func isRateLimit(name string) bool {
	name, x := strings.CutPrefix(name, "X-")
	rest, ok := strings.CutPrefix(name, "Ratelimit")
	if !ok && x {
		rest, ok = strings.CutPrefix(name, "Rate-Limit")
	}
	return ok && (rest == "" || rest[0] == '-')
}
