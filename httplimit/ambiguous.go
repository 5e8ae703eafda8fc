package httplimit

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// watch lists headers that identify clients, in canonical form. A request must give each of them once,
// under its own name. Servers disagree about which of two lines counts, so a client could otherwise
// show one identity to the limiter and another to the service.
type watch []string

func newWatch(names ...string) watch {
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// fault returns what is ambiguous, in words for the client, or "".
func (w watch) fault(r *http.Request) string {
	for _, name := range w {
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
func (w watch) find(name string) string {
	for _, real := range w {
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

// queryValue returns the value of a query parameter without building a map. If servers might read
// another value for that name, or find one where others don't, it returns the reason, in words for
// the client.
func queryValue(query, name string) (found, doubt string) {
	if strings.Contains(query, "#") {
		return "", "The query holds a #, at which some servers end it"
	}
	seen := false
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		split := strings.Contains(pair, ";") // some servers treat it as an &, others drop the pair
		for part := range strings.SplitSeq(pair, ";") {
			key, value, _ := strings.Cut(part, "=")
			if !couldMean(key, name) {
				continue
			}
			if seen {
				return "", "The query parameter " + name + " is given twice"
			}
			seen = true
			plain, err := url.QueryUnescape(key)
			if split || err != nil || plain != name {
				return "", "The query parameter " + name + " must be written as " + name + "=VALUE, between & and &"
			}
			if found, err = url.QueryUnescape(value); err != nil || strings.Contains(value, "+") {
				return "", "The value of the query parameter " + name + " must be percent-encoded, with %20 for a space and %2B for a +"
			}
		}
	}
	return found, ""
}

// couldMean reports whether any server takes a raw parameter name for this name: ignoring case
// (nginx, ASP.NET), with a dot, space or bracket for the underscore (PHP), with white space around
// it, or as an array or object (api_key[]).
func couldMean(raw, name string) bool {
	if raw == name {
		return true
	}
	at := 0
	for raw != "" {
		c, n := raw[0], 1
		switch c {
		case '+':
			c = ' '
		case '%':
			if escape := escapes.FindStringSubmatch(raw); escape != nil {
				code, _ := strconv.ParseUint(escape[1], 16, 8)
				c, n = byte(code), len(escape[0])
			}
		}
		raw = raw[n:]
		switch {
		case at == 0 && (c <= ' ' || c == '?'): // JavaScript's URLSearchParams drops a second ?
		case at == len(name):
			return c <= ' ' || c == '['
		case lower(c) == lower(name[at]), strings.IndexByte("_. [", c) >= 0 && strings.IndexByte("_. [", name[at]) >= 0:
			at++
		default:
			return false
		}
	}
	return at == len(name)
}

// escapes matches an escape at the beginning of a text; ASP reads %u0041, too.
var escapes = regexp.MustCompile(`(?i)^%(?:u00)?([0-9a-f]{2})`)
