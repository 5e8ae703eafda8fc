package checkapi

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/weirhq/weir/internal/jsonerror"
)

// parser reads JSON as RFC 8259 has it and no more. It exists because the
// decoders at hand are lenient where a limiter must not be: they take the last
// of two fields of a name, fold the case of names, and turn each byte that isn't
// UTF-8 into U+FFFD, which gives different keys one counter. BenchmarkDecode
// shows what it buys in time, which is what makes a batch worth sending.
//
// It stops at the first fault, and goes no deeper into a body than what it looks for.
type parser struct {
	src string
	pos int
}

// peek skips white space and returns the next byte, or 0 at the end.
func (p *parser) peek() byte {
	for ; p.pos < len(p.src); p.pos++ {
		switch c := p.src[p.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (p *parser) syntax(format string, args ...any) error {
	return jsonerror.Bad("not valid JSON at byte %d: %s", p.pos+1, fmt.Sprintf(format, args...))
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
	case beginsNumber(c):
		got = "a number"
	case p.literal("true"), p.literal("false"):
		got = "a boolean"
	case p.literal("null"):
		got = "null"
	case p.pos == len(p.src):
		return p.syntax("a value is missing")
	default:
		return p.syntax("this begins no value")
	}
	return jsonerror.Bad("%s: must be %s, got %s", field, want, got)
}

// elements reads what stands between two brackets, with commas between. The first bracket is here.
func (p *parser) elements(last byte, each func() error) error {
	p.pos++
	if p.peek() == last {
		p.pos++
		return nil
	}
	for {
		if err := each(); err != nil {
			return err
		}
		switch p.peek() {
		case ',':
			p.pos++
		case last:
			p.pos++
			return nil
		default:
			return p.syntax("expected , or %c", last)
		}
	}
}

// name reads the name of a member, and the colon behind it.
func (p *parser) name() (string, error) {
	if p.peek() != '"' {
		return "", p.syntax("expected the name of a field, in double quotes")
	}
	name, err := p.text()
	if err == nil && p.peek() != ':' {
		err = p.syntax("expected : behind the name of a field")
	}
	p.pos++
	return name, err
}

// literal reads a word if it is here.
func (p *parser) literal(word string) bool {
	p.peek()
	if !strings.HasPrefix(p.src[p.pos:], word) {
		return false
	}
	p.pos += len(word)
	return true
}

func beginsNumber(c byte) bool { return c == '-' || c >= '0' && c <= '9' }

// number reads the number that begins here, and returns it as it is written.
func (p *parser) number() (string, error) {
	from := p.pos
	for p.pos < len(p.src) && strings.IndexByte("+-.0123456789Ee", p.src[p.pos]) >= 0 {
		p.pos++
	}
	text := p.src[from:p.pos]
	if !json.Valid([]byte(text)) {
		return "", p.syntax("this is no number")
	}
	return text, nil
}

// plain marks the bytes that stand for themselves in a string and need no second look.
var plain = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// plainTo returns where the plain bytes end that begin at i.
func (p *parser) plainTo(i int) int {
	for i < len(p.src) && plain[p.src[i]] {
		i++
	}
	return i
}

// text reads the string that begins here. If all of it is plain, it is a part of the source.
func (p *parser) text() (string, error) {
	p.pos++
	if end := p.plainTo(p.pos); end < len(p.src) && p.src[end] == '"' {
		text := p.src[p.pos:end]
		p.pos = end + 1
		return text, nil
	}
	var b []byte
	for {
		end := p.plainTo(p.pos)
		b = append(b, p.src[p.pos:end]...)
		if p.pos = end; end == len(p.src) {
			return "", p.syntax("a string has no end")
		}
		switch c := p.src[end]; {
		case c == '"':
			p.pos++
			return string(b), nil
		case c == '\\':
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			b = utf8.AppendRune(b, r)
		case c < ' ':
			return "", p.syntax("a control character in a string must be escaped")
		default:
			r, size := utf8.DecodeRuneInString(p.src[end:])
			if r == utf8.RuneError && size == 1 {
				return "", p.syntax("a string must be UTF-8")
			}
			b = append(b, p.src[end:end+size]...)
			p.pos += size
		}
	}
}

// escape reads the escape that begins here, and returns what it stands for.
func (p *parser) escape() (rune, error) {
	const letters, meanings = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	if p.pos+1 == len(p.src) {
		return 0, p.syntax("a string has no end")
	}
	c := p.src[p.pos+1]
	if i := strings.IndexByte(letters, c); i >= 0 {
		p.pos += 2
		return rune(meanings[i]), nil
	}
	if c != 'u' {
		return 0, p.syntax("there is no such escape")
	}
	r, ok := hex4(p.src[p.pos:])
	if !ok {
		return 0, p.syntax(`\u wants four hexadecimal digits`)
	}
	size := 6
	if utf16.IsSurrogate(r) {
		low, ok := hex4(p.src[p.pos+size:])
		if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
			return 0, p.syntax("half of a surrogate pair is no character")
		}
		size += size
	}
	p.pos += size
	return r, nil
}

// hex4 reads \uXXXX.
func hex4(s string) (rune, bool) {
	if len(s) < 6 || s[:2] != `\u` {
		return 0, false
	}
	n, err := strconv.ParseUint(s[2:6], 16, 32)
	return rune(n), err == nil
}

// maxDepth is how deep values may be nested. A check needs three levels.
const maxDepth = 32

// skip reads a value of any kind and keeps nothing of it. What its strings hold isn't looked at:
// the reader of the value does that.
func (p *parser) skip(depth int) error {
	c := p.peek()
	switch {
	case (c == '{' || c == '[') && depth == maxDepth:
		return p.syntax("nested too deep")
	case c == '{':
		return p.elements('}', func() error {
			if _, err := p.name(); err != nil {
				return err
			}
			return p.skip(depth + 1)
		})
	case c == '[':
		return p.elements(']', func() error { return p.skip(depth + 1) })
	case c == '"':
		return p.skipText()
	case beginsNumber(c):
		_, err := p.number()
		return err
	case p.literal("true"), p.literal("false"), p.literal("null"):
		return nil
	}
	return p.syntax("this begins no value")
}

func (p *parser) skipText() error {
	for p.pos++; p.pos < len(p.src); p.pos++ {
		switch p.src[p.pos] {
		case '"':
			p.pos++
			return nil
		case '\\':
			p.pos++
		}
	}
	p.pos = len(p.src)
	return p.syntax("a string has no end")
}
