package checkapi

import (
	"fmt"
	"math"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/weirhq/weir/internal/jsonerror"
)

// parser reads JSON as RFC 8259 has it and no more. It exists because the
// decoders at hand are lenient where a limiter must not be: they take the last
// of two fields of a name, fold the case of names, and turn each byte that isn't
// UTF-8 into U+FFFD, which gives different keys one counter. It is also
// several times faster, which is what makes a batch worth sending.
//
// It goes no deeper into a body than what it looks for, whatever the body
// nests, and stops at the first fault.
type parser struct {
	src  []byte
	pos  int
	name []byte // of a field, if it had to be unescaped
}

// fields receives the fields of an object. The name is valid during the call only.
type fields interface {
	field(p *parser, name []byte) error
}

// white has a bit for each byte of white space.
const white = 1<<' ' | 1<<'\t' | 1<<'\n' | 1<<'\r'

// peek skips white space and returns the next byte, or 0 at the end.
func (p *parser) peek() byte {
	for p.pos < len(p.src) {
		c := p.src[p.pos]
		if c > ' ' || white>>c&1 == 0 {
			return c
		}
		p.pos++
	}
	return 0
}

func (p *parser) syntax(format string, args ...any) error {
	where := fmt.Sprintf("not valid JSON at byte %d: ", p.pos+1)
	return jsonerror.Bad("%s", where+fmt.Sprintf(format, args...))
}

// mismatch is the error of a value that isn't of the type its field wants.
func (p *parser) mismatch(field, want string) error {
	var got string
	switch c := p.peek(); {
	case c == '"':
		got = "a string"
	case c == '{':
		got = "an object"
	case c == '[':
		got = "a list"
	case c == 't' && p.literal("true"), c == 'f' && p.literal("false"):
		got = "a boolean"
	case p.null():
		got = "null"
	case c == '-' || c >= '0' && c <= '9':
		got = "a number"
	case p.pos == len(p.src):
		return p.syntax("a value is missing")
	default:
		return p.syntax("this begins no value")
	}
	return jsonerror.Bad("%s: must be %s, got %s", field, want, got)
}

// document reads an object that is all there is.
func (p *parser) document(f fields) error {
	if p.peek() == 0 && p.pos == len(p.src) {
		return jsonerror.Bad("the body is empty: send a JSON object")
	}
	if err := p.object("body", f); err != nil {
		return err
	}
	if p.peek(); p.pos < len(p.src) {
		return p.syntax("nothing may follow the object")
	}
	return nil
}

func (p *parser) object(field string, f fields) error {
	if p.peek() != '{' {
		return p.mismatch(field, "an object")
	}
	p.pos++
	if p.peek() == '}' {
		p.pos++
		return nil
	}
	for {
		name, err := p.fieldName()
		if err != nil {
			return err
		}
		if err := f.field(p, name); err != nil {
			return err
		}
		switch p.peek() {
		case ',':
			p.pos++
		case '}':
			p.pos++
			return nil
		default:
			return p.syntax("expected , or }")
		}
	}
}

// fieldName reads a name and the colon behind it.
func (p *parser) fieldName() ([]byte, error) {
	if p.peek() != '"' {
		return nil, p.syntax("expected the name of a field, in double quotes")
	}
	start := p.pos + 1
	end := start
	for end < len(p.src) && plain[p.src[end]] {
		end++
	}
	name := p.src[start:end]
	if end < len(p.src) && p.src[end] == '"' {
		p.pos = end + 1
	} else {
		var err error
		if p.name, err = p.text(p.name[:0]); err != nil {
			return nil, err
		}
		name = p.name
	}
	if p.peek() != ':' {
		return nil, p.syntax("expected : behind the name of a field")
	}
	p.pos++
	return name, nil
}

// null reads a null if there is one.
func (p *parser) null() bool { return p.peek() == 'n' && p.literal("null") }

func (p *parser) literal(word string) bool {
	end := p.pos + len(word)
	if end > len(p.src) || string(p.src[p.pos:end]) != word {
		return false
	}
	p.pos = end
	return true
}

func (p *parser) bool(field string) (bool, error) {
	switch c := p.peek(); {
	case c == 't' && p.literal("true"):
		return true, nil
	case c == 'f' && p.literal("false"):
		return false, nil
	}
	return false, p.mismatch(field, "true or false")
}

// int reads a whole number of at most 18 digits.
func (p *parser) int(field string) (int64, error) {
	c := p.peek()
	start := p.pos
	if c != '-' && (c < '0' || c > '9') {
		return 0, p.mismatch(field, "a whole number")
	}
	end, ok := number(p.src, start)
	if !ok {
		p.pos = end
		return 0, p.syntax("this is no number")
	}
	digits := p.src[start:end]
	sign := int64(1)
	if c == '-' {
		digits, sign = digits[1:], -1
	}
	n, whole := int64(0), true
	for i, c := range digits {
		switch {
		case c < '0' || c > '9':
			whole = false
		case i < 18:
			n = n*10 + int64(c-'0')
		}
	}
	p.pos = end
	switch {
	case !whole:
		return 0, jsonerror.Bad("%s: must be a whole number, written without fraction and exponent", field)
	case len(digits) > 18:
		n = math.MaxInt64 // out of every field's bounds, which its reader checks
	}
	return sign * n, nil
}

// number returns where the number that begins at i ends, and whether it is one.
func number(src []byte, i int) (end int, ok bool) {
	digits := func() bool {
		from := i
		for i < len(src) && src[i] >= '0' && src[i] <= '9' {
			i++
		}
		return i > from
	}
	if src[i] == '-' {
		i++
	}
	first := i
	if !digits() || src[first] == '0' && i > first+1 {
		return i, false
	}
	if i < len(src) && src[i] == '.' {
		if i++; !digits() {
			return i, false
		}
	}
	if i < len(src) && (src[i] == 'e' || src[i] == 'E') {
		if i++; i < len(src) && (src[i] == '+' || src[i] == '-') {
			i++
		}
		if !digits() {
			return i, false
		}
	}
	return i, true
}

// plain marks the bytes that stand for themselves in a string and need no second look.
var plain = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// text appends the string that begins here to dst, decoded.
func (p *parser) text(dst []byte) ([]byte, error) {
	p.pos++
	for {
		rest := p.src[p.pos:]
		n := 0
		for n < len(rest) && plain[rest[n]] {
			n++
		}
		dst = append(dst, rest[:n]...)
		if p.pos += n; n == len(rest) {
			return dst, p.syntax("a string has no end")
		}
		switch c := p.src[p.pos]; {
		case c == '"':
			p.pos++
			return dst, nil
		case c == '\\':
			var err error
			if dst, err = p.escape(dst); err != nil {
				return dst, err
			}
		case c < ' ':
			return dst, p.syntax("a control character in a string must be escaped")
		default:
			r, size := utf8.DecodeRune(p.src[p.pos:])
			if r == utf8.RuneError && size == 1 {
				return dst, p.syntax("a string must be UTF-8")
			}
			dst = append(dst, p.src[p.pos:p.pos+size]...)
			p.pos += size
		}
	}
}

// escape appends what the escape that begins here stands for.
func (p *parser) escape(dst []byte) ([]byte, error) {
	if p.pos+1 == len(p.src) {
		return dst, p.syntax("a string has no end")
	}
	c := p.src[p.pos+1]
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		return p.unicodeEscape(dst)
	default:
		return dst, p.syntax("there is no such escape")
	}
	p.pos += 2
	return append(dst, c), nil
}

func (p *parser) unicodeEscape(dst []byte) ([]byte, error) {
	r, ok := hex4(p.src[p.pos:])
	if !ok {
		return dst, p.syntax(`\u wants four hexadecimal digits`)
	}
	size := 6
	if utf16.IsSurrogate(r) {
		low, ok := hex4(p.src[p.pos+6:])
		if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
			return dst, p.syntax("half of a surrogate pair is no character")
		}
		size = 12
	}
	p.pos += size
	return utf8.AppendRune(dst, r), nil
}

// hex4 reads \uXXXX.
func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	for _, c := range b[2:6] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
