package usage

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// maxKept is how many bytes of a name, a string or a number are kept. Names of models, and of all fields that
	// matter, are shorter.
	maxKept = 256
	// maxDepth is how deeply values may be nested. Calls to models and their answers have fewer than 30 levels.
	maxDepth = 512
)

// place says in what part of a document a value is, as far as this matters to the visitor.
type place uint8

const (
	nowhere    place = iota // a part that doesn't matter, and everything inside it
	top                     // the document as a whole
	firstPlace              // the first of the places that visitors define
)

// visitor receives the values that a scanner finds, except values whose place is nowhere.
type visitor interface {
	// member returns the place of an object's member. If the name is longer than maxKept, it is nil.
	member(of place, name []byte) place
	// element returns the place of the elements of an array.
	element(of place) place
	// open and close are called at the beginning and at the end of an object or an array. at is the offset after the
	// opening bracket.
	open(p place, bracket byte, at int64)
	close(p place, bracket byte)
	scalar(p place, v scalar)
}

// scalar is a value that is neither an object nor an array.
type scalar struct {
	kind     byte   // '"' string, '0' number, 't' true, 'f' false, 'n' null
	text     []byte // the decoded string, or the number; nil if longer than maxKept; valid only during the call
	size     int64  // size of the text in bytes
	from, to int64  // offsets of the value in the document
}

type state uint8

const (
	beforeValue state = iota
	beforeElement
	beforeMember // before the first member of an object; beforeName is for the members after it
	beforeName
	beforeColon
	afterValue
	inString
	inEscape
	inHex
	inNumber
	inWord
	finished // a document is complete
	broken   // the input isn't JSON
)

type level struct {
	place place
	array bool
}

// scanner parses JSON as it arrives, in parts that may end anywhere. It keeps only the name or the short value that it
// is reading, so its size is fixed. It accepts the same input as [encoding/json.Valid], with two exceptions: values may
// be nested only up to maxDepth, and numbers longer than maxKept aren't checked. The zero value is ready once it has a
// visitor.
type scanner struct {
	visitor visitor
	state   state
	isName  bool // the string in progress is a name
	at      place
	depth   int
	read    int64 // bytes of this document that have been read
	from    int64 // offset of the current scalar

	size   int64  // size of the current scalar, decoded
	word   string // the rest of the word true, false or null
	kind   byte
	digits int  // number of digits so far in a \u escape
	code   rune // value of these digits
	high   rune // the first half of a surrogate pair; 0 if there is none

	kept   [maxKept]byte
	levels [maxDepth]level
}

// reset prepares the scanner for the next document.
func (s *scanner) reset() { s.state, s.depth, s.read = beforeValue, 0, 0 }

// feed reads the next part, and returns how many bytes it has read. It stops at the end of a document, or at the first
// byte that isn't valid JSON.
func (s *scanner) feed(p []byte) int {
	i := 0
	for i < len(p) && s.state < finished {
		n := 1
		switch s.state {
		case inString:
			n = s.readString(p[i:])
		case inNumber:
			n = s.readNumber(p[i:])
		default:
			s.step(p[i])
		}
		i += n
		s.read += int64(n)
	}
	return i
}

// step reads one byte that is neither part of a number nor an ordinary character in a string.
func (s *scanner) step(c byte) {
	if s.state <= afterValue && (c == ' ' || c == '\n' || c == '\r' || c == '\t') {
		return
	}
	switch s.state {
	case beforeElement, beforeValue:
		if c == ']' && s.state == beforeElement {
			s.leave()
			return
		}
		s.begin(c)
	case beforeMember, beforeName:
		switch {
		case c == '"':
			s.beginString(true)
		case c == '}' && s.state == beforeMember:
			s.leave()
		default:
			s.state = broken
		}
	case beforeColon:
		s.state = broken
		if c == ':' {
			s.state = beforeValue
		}
	case afterValue:
		switch array := s.levels[s.depth-1].array; {
		case c == ',' && array:
			s.state = beforeValue
		case c == ',':
			s.state = beforeName
		case c == ']' && array, c == '}' && !array:
			s.leave()
		default:
			s.state = broken
		}
	case inEscape:
		s.escape(c)
	case inHex:
		s.hex(c)
	case inWord:
		if c != s.word[0] {
			s.state = broken
			return
		}
		if s.word = s.word[1:]; s.word == "" {
			s.scalar(1)
		}
	}
}

// begin reads the first byte of a value.
func (s *scanner) begin(c byte) {
	if s.depth == 0 {
		s.at = top
	} else if in := s.levels[s.depth-1]; in.array {
		s.at = nowhere
		if in.place != nowhere {
			s.at = s.visitor.element(in.place)
		}
	}
	s.from, s.size, s.kind = s.read, 0, c
	switch c {
	case '{', '[':
		s.enter(c)
	case '"':
		s.beginString(false)
	case 't':
		s.state, s.word = inWord, "rue"
	case 'f':
		s.state, s.word = inWord, "alse"
	case 'n':
		s.state, s.word = inWord, "ull"
	default:
		s.state, s.kind = inNumber, '0'
		if c != '-' && (c < '0' || c > '9') {
			s.state = broken
		}
		s.keep(c)
	}
}

func (s *scanner) enter(bracket byte) {
	if s.depth == maxDepth {
		s.state = broken
		return
	}
	s.levels[s.depth] = level{s.at, bracket == '['}
	s.depth++
	s.state = beforeMember
	if bracket == '[' {
		s.state = beforeElement
	}
	if s.at != nowhere {
		s.visitor.open(s.at, bracket, s.read+1)
	}
}

func (s *scanner) leave() {
	s.depth--
	in := s.levels[s.depth]
	s.ended()
	if in.place == nowhere {
		return
	}
	bracket := byte('}')
	if in.array {
		bracket = ']'
	}
	s.visitor.close(in.place, bracket)
}

// ended records that a value is complete.
func (s *scanner) ended() {
	s.state = afterValue
	if s.depth == 0 {
		s.state = finished
	}
}

// scalar completes a scalar. n is how many bytes after read the scalar ends.
func (s *scanner) scalar(n int64) {
	s.ended()
	if s.at != nowhere {
		s.visitor.scalar(s.at, scalar{s.kind, s.text(), s.size, s.from, s.read + n})
	}
}

// isString reports whether the scanner is inside a string that isn't a name.
func (s *scanner) isString() bool {
	return !s.isName && (s.state == inString || s.state == inEscape || s.state == inHex)
}

// text returns the text of a scalar or a name, or nil if it is too long.
func (s *scanner) text() []byte {
	if s.size > maxKept {
		return nil
	}
	return s.kept[:s.size]
}

func (s *scanner) keep(text ...byte) {
	if s.size < maxKept {
		copy(s.kept[s.size:], text)
	}
	s.size += int64(len(text))
}

func (s *scanner) keepRune(r rune) {
	var b [utf8.UTFMax]byte
	s.keep(b[:utf8.EncodeRune(b[:], r)]...)
}

func (s *scanner) beginString(isName bool) {
	s.state, s.isName, s.size, s.high = inString, isName, 0, 0
}

// special has the bytes that have a special meaning in a string.
var special = func() (t [256]bool) {
	for c := range ' ' {
		t[c] = true
	}
	t['"'], t['\\'] = true, true
	return t
}()

// readString reads the ordinary characters of a string at the start of p, and the byte after them. A scanner spends
// most of its time here.
func (s *scanner) readString(p []byte) int {
	n := 0
	for n < len(p) && !special[p[n]] {
		n++
	}
	if n > 0 {
		s.high = 0
		s.keep(p[:n]...)
	}
	if n == len(p) {
		return n
	}
	switch {
	case p[n] == '\\':
		s.state = inEscape
	case p[n] != '"':
		s.state = broken
	case s.isName:
		s.state = beforeColon
		s.at = nowhere
		if of := s.levels[s.depth-1].place; of != nowhere {
			s.at = s.visitor.member(of, s.text())
		}
	default:
		s.scalar(int64(n) + 1)
	}
	return n + 1
}

// escapes has the letters of short escapes. unescaped has the characters that they stand for, in the same order.
const escapes, unescaped = `"\/bfnrt`, "\"\\/\b\f\n\r\t"

func (s *scanner) escape(c byte) {
	s.state = inString
	if c == 'u' {
		s.state, s.digits, s.code = inHex, 0, 0
	} else if at := strings.IndexByte(escapes, c); at >= 0 {
		s.high = 0
		s.keep(unescaped[at])
	} else {
		s.state = broken
	}
}

func (s *scanner) hex(c byte) {
	switch {
	case '0' <= c && c <= '9':
		c -= '0'
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		c = c | 0x20 - 'a' + 10
	default:
		s.state = broken
		return
	}
	s.code = s.code<<4 | rune(c)
	if s.digits++; s.digits < 4 {
		return
	}
	s.state = inString
	high := s.high
	s.high = 0
	switch {
	case !utf16.IsSurrogate(s.code):
		s.keepRune(s.code)
	case high != 0 && s.code >= 0xDC00:
		s.size -= 3 // the size of the replacement character that stood for the first half
		s.keepRune(utf16.DecodeRune(high, s.code))
	default:
		s.keepRune(utf8.RuneError)
		if s.code < 0xDC00 {
			s.high = s.code
		}
	}
}
