package httplimit

import (
	"net/http"
	"slices"
	"strings"
)

// watch lists headers that identify clients. A request must give each of them once, under its own
// name. Servers disagree about which of two lines counts, so a client could otherwise show one
// identity to the limiter and another to the service.
type watch struct {
	names []string // in canonical form
}

func newWatch(names ...string) watch {
	return watch{slices.DeleteFunc(names, func(name string) bool { return name == "" })}
}

// fault returns what is ambiguous, in words for the client, or "".
func (w *watch) fault(r *http.Request) string {
	for _, name := range w.names {
		if len(r.Header[name]) > 1 {
			return "The header " + name + " is given twice"
		}
	}
	for _, line := range r.Header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = w.find(strings.TrimSpace(name)); name != "" {
				// A proxy drops the headers that Connection lists, so the service would not see
				// this one.
				return "The header " + name + " is listed in Connection"
			}
		}
	}
	for name := range r.Trailer {
		if name = w.find(name); name != "" {
			return "The header " + name + " is announced as a trailer"
		}
	}
	for name := range r.Header {
		// Servers that turn headers into variables, as CGI does, can't tell X_API_Key from X-API-Key.
		if real := w.find(name); real != "" && real != name {
			return "The header " + real + " is spelled " + name
		}
	}
	return ""
}

// find returns the watched name that a header has, or could be mistaken for.
func (w *watch) find(name string) string {
	for _, real := range w.names {
		if len(real) == len(name) && alike(real, name) {
			return real
		}
	}
	return ""
}

// alike compares names as CGI turns them into variables: it ignores case, and treats all characters
// but letters and digits as equal.
func alike(a, b string) bool {
	for i := range len(a) {
		x, y := lower(a[i]), lower(b[i])
		if x != y && (!notAlphanumeric(rune(x)) || !notAlphanumeric(rune(y))) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

func notAlphanumeric(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
}
