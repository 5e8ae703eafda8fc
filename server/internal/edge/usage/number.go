package usage

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
)

// maxCount is the largest count that is accepted: 2⁵³, up to which every JSON parser is exact. The sum of a few such
// counts fits into an int64.
const maxCount = 1 << 53

// count parses a scalar as a token count. The scalar must have only digits: no server writes token counts as 1e3 or
// 5.0.
func (v scalar) count() Amount {
	n, err := strconv.ParseUint(string(v.text), 10, 64)
	if v.kind != '0' || err != nil || n > maxCount {
		return Amount{}
	}
	return Amount{int64(n), true}
}

// limit parses a scalar as a limit in a request. The scalar must be a number, or a string of digits, which some servers
// accept as a number. Otherwise, ok is false. If the number isn't above 0, the limit is unknown.
func (v scalar) limit() (n Amount, ok bool) {
	switch {
	case v.kind != '0' && v.kind != '"' || v.text == nil:
		return Amount{}, false
	case v.kind == '"' && (v.size == 0 || strings.Trim(string(v.text), "0123456789") != ""):
		return Amount{}, false
	}
	f, err := strconv.ParseFloat(string(v.text), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return Amount{}, false
	}
	if f <= 0 {
		return Amount{}, true
	}
	return Amount{int64(math.Ceil(min(f, maxCount))), true}, true
}

// isTrue reports whether any server might treat a scalar as true.
func (v scalar) isTrue() bool {
	switch v.kind {
	case 't':
		return true
	case '0':
		f, err := strconv.ParseFloat(string(v.text), 64)
		return err != nil || f != 0
	case '"':
		switch strings.ToLower(strings.TrimSpace(string(v.text))) {
		case "true", "1", "yes", "on", "t", "y":
			return true
		}
	}
	return false
}

// readNumber reads as much of a number as p contains.
func (s *scanner) readNumber(p []byte) int {
	for n, c := range p {
		if strings.IndexByte("+-.0123456789Ee", c) < 0 {
			if text := s.text(); text != nil && !json.Valid(text) {
				s.state = broken
			} else {
				s.scalar(int64(n))
			}
			return n
		}
		s.keep(c)
	}
	return len(p)
}
