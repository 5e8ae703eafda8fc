package weir

import (
	"math/bits"
	"strings"
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

// splitNormal appends the segments of a path that needs no work, as most don't,
// and reports false for others.
func splitNormal(path string, segments []string) ([]string, bool) {
	if len(path) == 0 || path[0] != '/' {
		return segments, false
	}
	from := 1
	for i := 1; i < len(path); i += 8 {
		for odd := unusual(path[i:]); odd != 0; odd &= odd - 1 {
			j := i + bits.TrailingZeros64(odd)/8
			switch c := path[j]; {
			case !special[c]:
			case j == from || c != '/' && c != '.':
				return segments, false
			case c == '/':
				segments = append(segments, path[from:j])
				from = j + 1
			}
		}
	}
	if from < len(path) {
		return append(segments, path[from:]), true
	}
	return segments, len(path) == 1
}

// split appends the segments of a normal path.
func split(path string, segments []string) []string {
	for len(path) > 1 {
		end := strings.IndexByte(path[1:], '/') + 1
		if end == 0 {
			end = len(path)
		}
		segments = append(segments, path[1:end])
		path = path[end:]
	}
	return segments
}

// unusual marks, by the highest bit of each, which of the first eight bytes are
// not lower-case letters, digits or dashes. It looks at all of them at once.
func unusual(s string) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	var x uint64
	if len(s) >= 8 {
		x = load64(s)
	} else {
		x = ones * 'a' << (8 * len(s))
		for i := range len(s) {
			x |= uint64(s[i]) << (8 * i)
		}
	}
	low := x &^ highs // so that no sum carries into the next byte
	letter := low + ones*(0x80-'a')
	digit := (low + ones*(0x80-'0')) &^ (low + ones*(0x80-'9'-1))
	dash := ^(low ^ ones*'-' + ones*0x7f)
	return (x | ^(letter | digit | dash)) & highs
}

// special are bytes that can mean something else than themselves.
var special = func() (set [256]bool) {
	for c := range set {
		set[c] = c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf || strings.IndexByte("/.%;\\?#", byte(c)) >= 0
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
