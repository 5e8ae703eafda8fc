// Package shown makes of texts that clients and rule files bring what people may see of them: in messages,
// in logs and on terminals.
package shown

import (
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Clip shortens text that is longer than n characters.
func Clip(s string, n int) string {
	if short := First(s, n); len(short) < len(s) {
		return short + "…"
	}
	return s
}

// First is the first n characters of a text.
func First(s string, n int) string {
	i := 0
	for ; n > 0 && i < len(s); n-- {
		_, size := utf8.DecodeRuneInString(s[i:])
		i += size
	}
	return s[:i]
}

// Last is the last n characters of a text.
func Last(s string, n int) string {
	i := len(s)
	for ; n > 0 && i > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(s[:i])
		i -= size
	}
	return s[i:]
}

// Printable keeps every character one column wide and harmless to a terminal.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case !strconv.IsPrint(r):
			return utf8.RuneError
		}
		return r
	}, s)
}

// Entry is an entry of a list, or a key in a rule, as people may see it. Addresses, ranges and the words before
// an asterisk are no secrets.
func Entry(entry string) string {
	entry = strings.TrimSpace(entry)
	_, noAddr := netip.ParseAddr(entry)
	_, noRange := netip.ParsePrefix(entry)
	if noAddr == nil || noRange == nil || strings.Contains(entry, "*") {
		return Printable(Clip(entry, 64))
	}
	return Key(entry)
}

// Key is what a client has sent as its key, as people may see it: how it begins and ends. It may look like a
// pattern or an address, and be a secret all the same.
//
// At most a third is shown, and twelve characters stay hidden, which nobody guesses. Of a key that has no more
// than those, it is a character or two.
func Key(key string) string {
	n := utf8.RuneCountInString(key)
	shown := max(min(n/3, n-12, 12), min(n/6, 2))
	tail := shown / 3
	return Printable(First(key, shown-tail) + "…" + Last(key, tail))
}
