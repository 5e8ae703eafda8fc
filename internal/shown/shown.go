// Package shown makes of texts that clients and rule files bring what people may see of them: in messages,
// in logs and on terminals.
package shown

import (
	"net/netip"
	"regexp"
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

// longWord is what looks like a key where nobody expects one.
var longWord = regexp.MustCompile(`[\pL\pN_-]*\pN[\pL\pN_-]*\*?`)

// minGuessed is how long such a word is.
const minGuessed = 16

// Guesses are where a text has words that look like keys.
func Guesses(text string) (at [][]int) {
	for _, w := range longWord.FindAllStringIndex(text, -1) {
		if w[1]-w[0] >= minGuessed {
			at = append(at, w)
		}
	}
	return at
}

// Hide masks in a text what looks like a key.
func Hide(text string) string {
	var out strings.Builder
	done := 0
	for _, at := range Guesses(text) {
		out.WriteString(text[done:at[0]] + Entry(text[at[0]:at[1]]))
		done = at[1]
	}
	return out.String() + text[done:]
}

// Name is what a caller has written where the name of something belongs, as people may see it: keys are pasted into wrong fields, and
// answers land in logs.
func Name(name string) string { return Clip(Hide(name), 64) }

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

// Value is what a rule counts by, as people may see it. Only what a client doesn't choose, and no secret can be, is shown whole.
// Of an address it is the bytes that count.
func Value(kind, value string) string {
	kind, _, _ = strings.Cut(kind, ":")
	switch kind {
	case "ip":
		p, ok := Network(value)
		switch {
		case !ok:
			return "(no address)"
		case len(value) == 4:
			return p.Addr().String()
		}
		return p.String()
	case "method", "endpoint", "tier", "path":
		return Printable(Clip(value, 64))
	}
	return Key(value)
}

// Network is what counts of an address, read from the value of a subject: 4 bytes of IPv4, 8 of IPv6, or a prefix of a rule's own.
func Network(value string) (p netip.Prefix, ok bool) {
	switch len(value) {
	case 4:
		return netip.PrefixFrom(netip.AddrFrom4([4]byte([]byte(value))), 32), true
	case 8:
		var all [16]byte
		copy(all[:], value)
		return netip.PrefixFrom(netip.AddrFrom16(all), 64), true
	}
	err := p.UnmarshalBinary([]byte(value))
	return p, err == nil && p.IsValid()
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
