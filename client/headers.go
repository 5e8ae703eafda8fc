package client

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Bounds for the headers of a server, which isn't trusted.
const (
	maxItems  = 16             // policies in one answer
	maxName   = 128            // bytes of a policy's name
	maxField  = 4 << 10        // bytes of a header that are read
	maxTime   = 24 * time.Hour // longer times are cut to this
	maxNumber = 1e12           // requests; parameters above this are ignored
)

// reading is what an answer says about one policy. A number that it doesn't give is negative.
type reading struct {
	name   string
	limit  float64       // requests in a window
	window time.Duration //
	left   float64       // requests
	reset  time.Duration // from now
	// other means that the policy counts something other than requests, such as tokens. Then only its refusals delay requests.
	other bool
}

// readings is what an answer says about limits.
type readings struct {
	policies []reading
	// retry is how long Retry-After asks to wait; negative without that header.
	retry time.Duration
}

// readHeaders reads all dialects of rate-limit headers. Times of day are relative to the answer's Date, since clocks differ.
func readHeaders(h http.Header, now time.Time) readings {
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	var rs readings
	if at, err := http.ParseTime(h.Get("Retry-After")); err == nil {
		rs.retry = bounded(at.Sub(now))
	} else {
		rs.retry = seconds(number(h.Get("Retry-After")))
	}
	rs.ietf(h)
	if len(rs.policies) == 0 {
		rs.loose(h, now)
	}
	return rs
}

// ietf reads RateLimit and RateLimit-Policy as the IETF draft has them since -08:
//
//	RateLimit-Policy: "orders";q=100;w=60, "tokens";q=5000;qu="tokens";w=86400
//	RateLimit: "orders";r=73;t=17
func (rs *readings) ietf(h http.Header) {
	for _, it := range parseList(h["Ratelimit-Policy"]) {
		r := rs.named(&it)
		if r == nil {
			return // an older draft, without names, or too many policies
		}
		if unit := it.params["qu"]; unit != "" && unit != "requests" && unit != "request" { // the draft uses both words
			r.other = true
			continue
		}
		r.limit, r.window = it.number("q"), seconds(it.number("w"))
	}
	for _, it := range parseList(h["Ratelimit"]) {
		r := rs.named(&it)
		if r == nil {
			return
		}
		r.left, r.reset = it.number("r"), seconds(it.number("t"))
	}
}

// named returns the reading of a policy with a quoted name, and adds it if need be. It returns nil if there are too many.
func (rs *readings) named(it *item) *reading {
	if !it.quoted {
		return nil
	}
	for i := range rs.policies {
		if rs.policies[i].name == it.name {
			return &rs.policies[i]
		}
	}
	if len(rs.policies) == maxItems {
		return nil
	}
	return rs.add(it.name)
}

func (rs *readings) add(name string) *reading {
	rs.policies = append(rs.policies, reading{name: name, limit: -1, window: -1, left: -1, reset: -1})
	return &rs.policies[len(rs.policies)-1]
}

// dialects are headers with one number each, for policies without a name. Only the first one that the answer has is read.
var dialects = []struct{ limit, remaining, reset, name string }{
	{"Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset", ""}, // IETF drafts up to -06
	{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", "X-Ratelimit-Resource"},
	{"X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests", ""}, // OpenAI
}

// loose reads the dialects other than the current IETF draft.
func (rs *readings) loose(h http.Header, now time.Time) {
	for _, it := range parseList(h["Ratelimit"]) { // draft -07: limit=100, remaining=50, reset=5
		if it.value == "" {
			continue
		}
		if len(rs.policies) == 0 {
			rs.add("")
		}
		switch r := &rs.policies[0]; it.name {
		case "limit":
			r.limit = number(it.value)
		case "remaining":
			r.left = number(it.value)
		case "reset":
			r.reset = seconds(number(it.value))
		}
	}
	for i := 0; i < len(dialects) && len(rs.policies) == 0; i++ {
		d := &dialects[i]
		left := number(h.Get(d.remaining))
		if left < 0 {
			continue // Weir sends -1 if it couldn't count the request
		}
		r := rs.add(cut(h.Get(d.name), maxName))
		r.left = left
		limit, _, _ := strings.Cut(h.Get(d.limit), ",")
		limit, _, _ = strings.Cut(limit, ";")
		r.limit = number(limit)
		r.reset = moment(h.Get(d.reset), now)
	}
	for _, it := range parseList(h["Ratelimit-Policy"]) { // up to draft -07: 100;w=60
		if len(rs.policies) == 1 && !it.quoted && rs.policies[0].limit >= 0 && number(it.name) == rs.policies[0].limit {
			rs.policies[0].window = seconds(it.number("w"))
		}
	}
}

// moment parses the time at which a quota is reset: seconds from now, Unix seconds or milliseconds (told apart by their size),
// or a duration as Go writes it.
func moment(s string, now time.Time) time.Duration {
	switch n := number(s); {
	case n >= 1e11:
		return bounded(time.UnixMilli(int64(n)).Sub(now))
	case n >= 1e8:
		return bounded(time.Unix(int64(n), 0).Sub(now))
	case n >= 0:
		return seconds(n)
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return bounded(d)
	}
	return -1
}

// number parses a count or a time. It returns -1 for numbers that are negative, infinite or absurdly large, and for other text.
func number(s string) float64 {
	n, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil || len(s) > 32 || !(n >= 0 && n <= 1e15) {
		return -1
	}
	return n
}

// seconds converts a number of seconds, which it cuts to maxTime. A negative number, which is unknown, stays negative.
func seconds(n float64) time.Duration {
	if n < 0 {
		return -1
	}
	return time.Duration(min(n, maxTime.Seconds()) * float64(time.Second))
}

func bounded(d time.Duration) time.Duration { return min(max(d, 0), maxTime) }

func cut(s string, n int) string { return s[:min(len(s), n)] }
