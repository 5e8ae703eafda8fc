package weir

import (
	"unicode"
	"unicode/utf8"
)

// AppendPath appends the normal form of a request's path to dst: the one spelling
// that all spellings of a path share, so that no disguise of it escapes its limit.
// Escapes are decoded, however often they were encoded; case, repeated and
// trailing slashes, backslashes, ;parameters and dot segments are folded. Two
// paths that a server may tell apart can share a normal form: a limit
// that matches too much is safe.
func AppendPath(dst []byte, path string) []byte {
	if isNormal(path) {
		return append(dst, path...)
	}
	start := len(dst)
	dst = unescape(append(dst, '/'), path)
	raw := dst[start:]

	// Segments are resolved in place: the result is never longer than what was read.
	out := raw[:0]
	for i := 0; i < len(raw); {
		i++ // the slash
		from := i
		for i < len(raw) && raw[i] != '/' {
			i++
		}
		seg := raw[from:i]
		for j, c := range seg {
			if c == ';' {
				seg = seg[:j]
				break
			}
		}
		switch string(seg) {
		case "", ".":
		case "..":
			for len(out) > 0 && out[len(out)-1] != '/' {
				out = out[:len(out)-1]
			}
			if len(out) > 0 {
				out = out[:len(out)-1]
			}
		default:
			out = append(append(out, '/'), seg...)
		}
	}
	if len(out) == 0 {
		out = append(out, '/')
	}
	return dst[:start+len(out)]
}

// isNormal recognizes most paths that need no work, at a glance.
func isNormal(path string) bool {
	if len(path) == 0 || path[0] != '/' {
		return false
	}
	last := byte('/')
	for i := 1; i < len(path); i++ {
		c := path[i]
		if folds[c] || last == '/' && (c == '/' || c == '.') {
			return false
		}
		last = c
	}
	return last != '/' || len(path) == 1
}

// folds are bytes that mean something else than themselves.
var folds = func() (set [256]bool) {
	for c := range set {
		set[c] = c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf || c == '%' || c == ';' || c == '\\' || c == '?' || c == '#'
	}
	return set
}()

// unescape appends path to dst, decoded and in lower case, up to its query.
func unescape(dst []byte, path string) []byte {
	floor, wide := len(dst), false
	for i := 0; i < len(path); i++ {
		c := path[i]
		if c == '?' || c == '#' {
			break
		}
		dst = append(dst, c)
		// A decoded % may complete another escape, so look again after each.
		for n := len(dst); n-floor >= 3 && dst[n-3] == '%' && isHex(dst[n-2]) && isHex(dst[n-1]); n = len(dst) {
			dst = append(dst[:n-3], unhex(dst[n-2])<<4|unhex(dst[n-1]))
		}
		switch last := &dst[len(dst)-1]; {
		case *last == '\\':
			*last = '/'
		case *last >= 'A' && *last <= 'Z':
			*last += 'a' - 'A'
		case *last >= utf8.RuneSelf:
			wide = true
		}
	}
	if wide {
		return append(dst[:floor], foldRunes(dst[floor:])...)
	}
	return dst
}

// foldRunes is rare enough to be allowed its allocations.
func foldRunes(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			out = append(out, b[0]) // not UTF-8: leave the byte as it is
		} else {
			out = utf8.AppendRune(out, unicode.ToLower(unicode.ToUpper(r)))
		}
		b = b[size:]
	}
	return out
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c >= 'a':
		return c - 'a' + 10
	}
	return c - 'A' + 10
}
