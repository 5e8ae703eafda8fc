// Package observer has what the observers of decisions share: the words that metrics, traces and the decision log
// have for one, so that each can be found in the others, and how many lanes they count in.
package observer

import (
	"cmp"
	"runtime"

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

// Lanes is how many places to count in, so that cores don't wait for each other: a power of two.
func Lanes() int {
	n := 1
	for n < min(runtime.GOMAXPROCS(0), 16) {
		n *= 2
	}
	return n
}
