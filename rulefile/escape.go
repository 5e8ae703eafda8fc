package rulefile

import (
	"strings"

	"github.com/goccy/go-yaml/token"
)

// checkEscapes refuses \x, \u and \U without enough digits between double
// quotes: the YAML library makes some character of whatever stands there.
func checkEscapes(tokens token.Tokens, src *source, list *problems) {
	var c cursor
	for _, tk := range tokens {
		line := tk.Position.Line
		if tk.Type != token.DoubleQuoteType || line > len(src.lines) {
			continue
		}
		c.seek(src.lines[line-1], line, tk.Position.Column)
		if !goodEscapes(src.lines[line-1][c.offset:]) {
			list.add(placeOf(tk), "", `has an escape without its digits: \x takes 2, \u takes 4 and \U takes 8`).
				Hint = "write it between single quotes, where a backslash is a backslash"
		}
	}
}

// goodEscapes looks at text from a double quote to the one that closes it.
func goodEscapes(s string) bool {
	for i := 1; i < len(s) && s[i] != '"'; i++ {
		if s[i] != '\\' || i+1 == len(s) {
			continue
		}
		i++
		digits := 0
		switch s[i] {
		case 'x':
			digits = 2
		case 'u':
			digits = 4
		case 'U':
			digits = 8
		}
		if i+digits >= len(s) || strings.Trim(s[i+1:i+1+digits], "0123456789abcdefABCDEF") != "" {
			return false
		}
		i += digits
	}
	return true
}
