package pattern

import (
	"bytes"
	"encoding/hex"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxPath is how many bytes a path may have. A longer path is refused, because finding all its readings would cost too
// much.
const MaxPath = 4096

// Bounds of the readings of a path. A path that exceeds them is refused. The expressions of rules are matched with all
// readings, so the readings together mustn't be much longer than the longest path.
const (
	maxReadings     = 32
	maxReadingBytes = 3 * MaxPath // including the original path
)

// Readings are the ways in which servers may read a path. Servers differ: they decode once, twice, or segment by
// segment; they strip ;parameters or keep them; and they resolve dots before the other steps, after them, or never.
// Rules are matched with each reading. A rule applies if it matches any of them, so that a client can't avoid a limit
// by spelling a path differently.
//
// The zero value has no reading. Reuse a value for the next path, so that reading allocates nothing.
type Readings struct {
	text []byte
	list []reading
	over bool // there are too many readings
}

// reading is the part of Readings.text between from and to. It is in lower case, and has a slash at both ends. Escapes
// that can't change where a path leads, such as %6c, are decoded in all readings.
type reading struct {
	from, to int
	odd      oddity
}

// Len returns how many readings there are.
func (p *Readings) Len() int { return len(p.list) }

// At returns the text of reading i. It is in lower case, and has a slash at both ends.
func (p *Readings) At(i int) []byte { return p.text[p.list[i].from:p.list[i].to] }

// Reset forgets all readings.
func (p *Readings) Reset() { p.list = p.list[:0] }

// oddity is a property of a text that servers may read in different ways.
type oddity uint8

const (
	oddEscape     oddity = 1 << iota // %2e and similar escapes
	oddSlash                         // %2f
	oddParameters                    // ;
	oddBackslash
	oddCut   // a decoded ?, #, NUL or line break, at which some servers end the path
	oddDots  // a segment that is . or ..
	oddEmpty // an empty segment: //
	oddTail  // a segment that ends with a dot or a space, which Windows drops
)

// kind classifies the bytes of a path by what they mean to servers.
type kind uint8

const (
	kindText   kind = iota
	kindSlash       // ends a segment
	kindMeans       // has a meaning, whether raw or decoded
	kindEscape      // %
	kindUpper       // an upper-case letter
	kindWide        // part of a character that isn't ASCII
)

// kinds maps bytes to their kinds.
var kinds = func() (k [256]kind) {
	for c := range k {
		switch {
		case c >= 'A' && c <= 'Z':
			k[c] = kindUpper
		case c >= utf8.RuneSelf:
			k[c] = kindWide
		}
	}
	k['/'], k['%'] = kindSlash, kindEscape
	for _, c := range ";\\?#\x00\n\r" {
		k[c] = kindMeans
	}
	return k
}()

// structural reports whether decoding an escape of the byte can change where a path leads.
func structural(c byte) bool {
	return c == '.' || kinds[c] >= kindSlash && kinds[c] <= kindEscape
}

// Read finds the readings of a path. It returns false if the path is longer than MaxPath, or if it has too many
// readings.
func (p *Readings) Read(path string) bool {
	p.list, p.over = p.list[:0], false
	if len(path) > MaxPath {
		return false
	}
	if p.plain(path) {
		p.list = append(p.list, reading{to: len(p.text)})
		return true
	}
	path, _, _ = strings.Cut(path, "?")
	p.text = append(p.text[:0], path...)
	p.add(p.decode(p.text, decodeText))
	if !strings.HasPrefix(path, "/") {
		if n := len(scheme.FindString(path)); n > 0 { // http://host/path
			p.add(p.decode(p.text[n:len(path)], decodeText))
		}
	}
	for i := 0; i < len(p.list) && !p.over; i++ {
		p.reread(p.list[i])
	}
	if p.over {
		p.list = p.list[:0]
	}
	return !p.over
}

// plain adds the only reading of a path that all servers read alike, which most paths are. For other paths, it returns
// false.
func (p *Readings) plain(path string) bool {
	p.text = append(p.text[:0], path...)
	if path == "" || path[0] != '/' {
		return false
	}
	for i := range len(path) {
		switch c := path[i]; kinds[c] {
		case kindText:
		case kindUpper:
			p.text[i] = c + 'a' - 'A'
		case kindSlash:
			if i > 0 && readDifferently(path[i-1]) {
				return false
			}
		default:
			return false
		}
	}
	last := path[len(path)-1]
	if last != '/' {
		p.text = append(p.text, '/')
	}
	return last == '/' || !readDifferently(last)
}

// readDifferently reports whether servers disagree about how to read a slash, or the end of the path, after this byte.
func readDifferently(last byte) bool { return last == '/' || last == '.' || last == ' ' }

// scheme matches the scheme of a URL, including its colon.
var scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:`)

// reread applies each step that a server may take to a reading, and adds the results. New readings are reread in turn,
// so the steps are taken in every order, as in a chain of servers.
func (p *Readings) reread(r reading) {
	src := p.text[r.from:r.to] // appending to p.text doesn't change it
	if r.odd&oddEscape != 0 {
		p.add(p.decode(src, decodeAll))
		if r.odd&oddSlash != 0 {
			p.add(p.decode(src, decodeButSlash))
		}
	}
	if r.odd&oddParameters != 0 {
		p.add(p.withoutParameters(src))
		last := bytes.LastIndexByte(src[:len(src)-1], '/')
		if at := bytes.IndexByte(src[last:], ';'); at >= 0 {
			p.add(p.copy(src[:last+at]))
		}
	}
	if r.odd&oddBackslash != 0 {
		from := p.copy(src)
		for i, c := range p.text[from:] {
			if c == '\\' {
				p.text[from+i] = '/'
			}
		}
		p.add(from)
	}
	if r.odd&oddCut != 0 {
		p.add(p.copy(src[:bytes.IndexAny(src, "?#\x00\n\r")]))
	}
	if r.odd&oddDots != 0 {
		p.add(p.resolve(src))
	}
	if r.odd&oddEmpty != 0 {
		p.add(p.merge(src))
		if src[1] == '/' { // some servers resolve //host/path as a URL
			rest := bytes.TrimLeft(src, "/")
			p.add(p.copy(rest[bytes.IndexByte(rest, '/'):]))
		}
	}
	if r.odd&oddTail != 0 {
		p.add(p.withoutTails(src))
	}
}

// add adds the reading p.text[from:], unless it is known already.
func (p *Readings) add(from int) {
	end := len(p.text)
	for end > from && p.text[end-1] == '/' {
		end--
	}
	p.text = append(p.text[:end], '/')
	text := p.text[from:]
	for _, r := range p.list {
		if bytes.Equal(p.text[r.from:r.to], text) {
			p.text = p.text[:from]
			return
		}
	}
	if len(p.list) == maxReadings || len(p.text) > maxReadingBytes {
		p.text, p.over = p.text[:from], true
		return
	}
	p.list = append(p.list, reading{from, len(p.text), oddities(text)})
}

func oddities(text []byte) (odd oddity) {
	for i := 1; i < len(text); i++ {
		switch c := text[i]; kinds[c] {
		case kindText:
		case kindSlash:
			switch text[i-1] {
			case '/':
				odd |= oddEmpty
			case '.', ' ':
				switch seg := text[bytes.LastIndexByte(text[:i], '/')+1 : i]; {
				case string(seg) == "." || string(seg) == "..":
					odd |= oddDots
				case len(bytes.TrimRight(seg, ". ")) > 0:
					odd |= oddTail
				}
			}
		case kindEscape:
			if v, ok := escaped(text[i:]); ok && structural(v) {
				odd |= oddEscape
				if v == '/' {
					odd |= oddSlash
				}
			}
		case kindMeans:
			switch c {
			case ';':
				odd |= oddParameters
			case '\\':
				odd |= oddBackslash
			default:
				odd |= oddCut
			}
		}
	}
	return odd
}

// copy begins a reading with a slash and src. It returns where the reading starts in p.text.
func (p *Readings) copy(src []byte) (from int) {
	from = len(p.text)
	if len(src) == 0 || src[0] != '/' {
		p.text = append(p.text, '/')
	}
	p.text = append(p.text, src...)
	return from
}

// withoutParameters begins a reading with src, but leaves out the ;parameters of each segment.
func (p *Readings) withoutParameters(src []byte) (from int) {
	from = len(p.text)
	for {
		before, parameters, found := bytes.Cut(src, []byte(";"))
		p.text = append(p.text, before...)
		if !found {
			return from
		}
		src = parameters[bytes.IndexByte(parameters, '/'):]
	}
}

// withoutTails begins a reading with src, but leaves out the dots and spaces at the end of segments that also have
// other characters.
func (p *Readings) withoutTails(src []byte) (from int) {
	from = p.copy(nil)
	for rest := src[1:]; len(rest) > 0; {
		end := bytes.IndexByte(rest, '/')
		seg := rest[:end]
		if short := bytes.TrimRight(seg, ". "); len(short) > 0 {
			seg = short
		}
		p.text = append(append(p.text, seg...), '/')
		rest = rest[end+1:]
	}
	return from
}

// resolve begins a reading with src, and resolves dot segments as in RFC 3986, where an empty segment counts as a
// segment.
func (p *Readings) resolve(src []byte) (from int) {
	from = len(p.text)
	out := p.text
	for {
		dot := bytes.Index(src, []byte("/."))
		if dot < 0 {
			p.text = append(out, src...)
			return from
		}
		out, src = append(out, src[:dot]...), src[dot:]
		switch {
		case bytes.HasPrefix(src, []byte("/./")):
			src = src[len("/."):]
		case bytes.HasPrefix(src, []byte("/../")):
			out, src = out[:from+max(0, bytes.LastIndexByte(out[from:], '/'))], src[len("/.."):]
		default: // the segment only begins with a dot
			out, src = append(out, "/."...), src[len("/."):]
		}
	}
}

// merge adds a reading: src with each run of slashes merged into one.
func (p *Readings) merge(src []byte) (from int) {
	from = len(p.text)
	for {
		empty := bytes.Index(src, []byte("//"))
		if empty < 0 {
			p.text = append(p.text, src...)
			return from
		}
		p.text = append(p.text, src[:empty]...)
		src = src[empty+1:]
	}
}

// decoding says which escapes are decoded. Escapes that can't change where the path leads are always decoded.
type decoding uint8

const (
	decodeText     decoding = iota // only escapes that can't change where the path leads
	decodeButSlash                 // all except %2f, as in routers that split a path before they decode it
	decodeAll
)

// decode begins a reading with src, decoded once.
func (p *Readings) decode(src []byte, how decoding) (from int) {
	from = p.copy(nil)
	if len(src) > 0 && src[0] == '/' {
		src = src[1:]
	}
	p.text = unescape(p.text, src, how)
	return from
}

// Unescape decodes a text once, and returns it in lower case. It doesn't decode escapes that can change where a path
// leads.
func Unescape(s string) string { return string(unescape(nil, []byte(s), decodeText)) }

// unescape appends src to dst, decoded and in lower case.
func unescape(dst, src []byte, how decoding) []byte {
	floor, wide := len(dst), false
	for i := 0; i < len(src); i++ {
		c := src[i]
		if c == '%' {
			if v, ok := escaped(src[i:]); ok {
				i += 2
				if structural(v) && (how == decodeText || how == decodeButSlash && v == '/') {
					dst = append(dst, c, lower(src[i-1]), lower(src[i]))
					continue
				}
				c = v
			}
		}
		dst = append(dst, lower(c))
		wide = wide || c >= utf8.RuneSelf
		// A decoded byte may complete another escape, as in %%36c.
		for n := len(dst); n-floor >= 3 && dst[n-3] == '%'; n = len(dst) {
			v, ok := escaped(dst[n-3:])
			if !ok || structural(v) {
				break
			}
			dst = append(dst[:n-3], lower(v))
			wide = wide || v >= utf8.RuneSelf
		}
	}
	if wide {
		end := len(dst)
		dst = appendFolded(dst, dst[floor:end])
		dst = dst[:floor+copy(dst[floor:], dst[end:])]
	}
	return dst
}

// digits maps the bytes of hexadecimal digits to their values, and other bytes to 255.
var digits = func() (d [256]byte) {
	for c := range d {
		if _, err := hex.Decode(d[c:c+1], []byte{'0', byte(c)}); err != nil {
			d[c] = 255
		}
	}
	return d
}()

// escaped decodes the escape at the beginning of b. If there is none, it returns false.
func escaped(b []byte) (byte, bool) {
	if len(b) < 3 || b[0] != '%' {
		return 0, false
	}
	hi, lo := digits[b[1]], digits[b[2]]
	return hi<<4 | lo, hi|lo < 16
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// appendFolded appends b in a form that doesn't depend on upper and lower case.
func appendFolded(dst, b []byte) []byte {
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			dst = append(dst, b[0]) // not UTF-8: leave the byte as it is
		} else {
			dst = utf8.AppendRune(dst, unicode.ToLower(unicode.ToUpper(r)))
		}
		b = b[size:]
	}
	return dst
}
