// Package observer has what the observers of decisions share: the words that metrics, traces and the decision log
// have for one, so that each can be found in the others, and how many lanes they count in.
package observer

import (
	"cmp"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/weirhq/weir"
)

// Outcome is allowed or refused.
func Outcome(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "refused"
}

// Reason is why, in a word.
func Reason(r weir.Reason) string {
	if r == weir.ReasonIdentityRequired {
		return "identity"
	}
	return r.String()
}

// Edge is where a request came in. One without an edge came from a program that embeds Weir.
func Edge(name string) string { return cmp.Or(name, "library") }

// Edges are where requests come in.
var Edges = [...]string{"library", "http", "check", "gateway", "envoy", "extauthz", "forwardauth", "grpc", "resp"}

// Method is a method that there is, or "other": a client can send any word.
func Method(m string) string {
	switch m {
	case "", http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
		http.MethodConnect, http.MethodTrace:
		return m
	}
	return "other"
}

// Path is the pattern of the limit that binds, without a method: what a client has asked for may hold secrets.
func Path(p *weir.Policy) string {
	if p == nil {
		return ""
	}
	return p.Endpoint[strings.LastIndexByte(p.Endpoint, ' ')+1:]
}

// Milliseconds rounds up; -1 if waiting doesn't help.
func Milliseconds(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// Lanes is how many places to count in, so that cores don't wait for each other: a power of two.
func Lanes() int {
	n := 1
	for n < min(runtime.GOMAXPROCS(0), 16) {
		n *= 2
	}
	return n
}
