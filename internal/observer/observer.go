// Package observer has the code that observers of decisions share: the words that metrics, traces and the decision log
// use for the same things, and the number of stripes of a counter.
package observer

import (
	"cmp"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// Outcome returns "allowed" or "refused".
func Outcome(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "refused"
}

// Reason returns the word for a decision's reason.
func Reason(r weir.Reason) string {
	if r == weir.ReasonIdentityRequired {
		return "identity"
	}
	return r.String()
}

// Edge returns the name of the edge at which a request arrived. If name is "", the request came from a program that
// embeds Weir.
func Edge(name string) string { return cmp.Or(name, "library") }

// Edges lists all edges.
var Edges = [...]string{"library", "http", "check", "gateway", "envoy", "extauthz", "forwardauth", "grpc", "resp"}

// Method returns the method if it is a known one, and "other" if not, since clients can send any word.
func Method(m string) string {
	switch m {
	case "", http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions,
		http.MethodConnect, http.MethodTrace:
		return m
	}
	return "other"
}

// Path returns the path pattern of the binding limit. It never returns the client's own path, which may contain
// secrets.
func Path(p *counter.Policy) string {
	if p == nil {
		return ""
	}
	return p.Endpoint[strings.LastIndexByte(p.Endpoint, ' ')+1:]
}

// Milliseconds converts a duration to milliseconds, rounded up. It returns -1 for a negative duration, which means that
// waiting doesn't help.
func Milliseconds(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// Stripes returns how many copies of a counter to keep, so that cores don't contend for one. It is a power of two.
func Stripes() int {
	n := 1
	for n < min(runtime.GOMAXPROCS(0), 16) {
		n *= 2
	}
	return n
}
