package httplimit

import (
	"net/http"
	"strings"
)

// watch is the headers that a client's identity comes from. Each is to be given once and under its
// own name: servers disagree on which of two lines counts, so that a client could show one identity
// to the limiter and another to the service.
type watch struct {
	names   []string // in canonical form
	lengths uint64   // of names that can be disguised, a bit each
}

func newWatch(names ...string) watch {
	var w watch
	for _, name := range names {
		if name == "" {
			continue
		}
		w.names = append(w.names, name)
		if strings.ContainsFunc(name, notAlphanumeric) {
			w.lengths |= 1 << (len(name) & 63)
		}
	}
	return w
}

// fault says what is ambiguous, in words for the client, or returns "".
func (w *watch) fault(r *http.Request) string {
	for _, name := range w.names {
		if len(r.Header[name]) > 1 {
			return "The header " + name + " is given twice"
		}
	}
	for _, line := range r.Header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = w.find(strings.TrimSpace(name)); name != "" {
				// A proxy drops what Connection lists, and the service would see a request without it.
				return "The header " + name + " is listed in Connection"
			}
		}
	}
	for name := range r.Trailer {
		if name = w.find(name); name != "" {
			return "The header " + name + " is announced as a trailer"
		}
	}
	if w.lengths != 0 {
		for name := range r.Header {
			if w.lengths>>(len(name)&63)&1 == 0 {
				continue
			}
			// Servers that hand headers on as variables, as CGI does, can't tell X_API_Key from X-API-Key.
			if real := w.find(name); real != "" && real != name {
				return "The header " + real + " is spelled " + name
			}
		}
	}
	return ""
}

// find returns the name that a header is meant as, or could be taken for.
func (w *watch) find(name string) string {
	for _, real := range w.names {
		if len(real) == len(name) && alike(real, name) {
			return real
		}
	}
	return ""
}

// alike compares names as CGI makes variables of them: without case, and with everything but letters and digits the same.
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
