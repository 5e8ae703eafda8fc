// Package shown makes texts from clients and rule files safe to show in messages, logs and terminals.
package shown

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Clip shortens a text of more than n characters to n characters and an ellipsis.
func Clip(s string, n int) string {
	if short := First(s, n); len(short) < len(s) {
		return short + "…"
	}
	return s
}

// First returns the first n characters.
func First(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

// Last returns the last n characters.
func Last(s string, n int) string {
	return s[len(First(s, utf8.RuneCountInString(s)-n)):]
}

// Printable replaces characters that aren't printable, because some of them control terminals.
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

// longWord matches words that contain a digit, which may be API keys.
var longWord = regexp.MustCompile(`[\pL\pN_-]*\pN[\pL\pN_-]*\*?`)

// minKey is the length from which such a word is assumed to be a key.
const minKey = 16

// Keys returns the positions of words that look like keys.
func Keys(text string) (at [][]int) {
	for _, w := range longWord.FindAllStringIndex(text, -1) {
		if w[1]-w[0] >= minKey {
			at = append(at, w)
		}
	}
	return at
}

// Hide masks words that look like keys.
func Hide(text string) string {
	var out strings.Builder
	done := 0
	for _, at := range Keys(text) {
		out.WriteString(text[done:at[0]] + Entry(text[at[0]:at[1]]))
		done = at[1]
	}
	return out.String() + text[done:]
}

// Name shortens a name from a caller, and masks keys in it: people paste keys into wrong fields, and responses end up
// in logs.
func Name(name string) string { return Clip(Hide(name), 64) }

// Entry returns a list entry or a rule's key with secrets masked. Addresses, ranges and patterns with an asterisk
// aren't secrets.
func Entry(entry string) string {
	entry = strings.TrimSpace(entry)
	_, noAddr := netip.ParseAddr(entry)
	_, noRange := netip.ParsePrefix(entry)
	if noAddr == nil || noRange == nil || strings.Contains(entry, "*") {
		return Printable(Clip(entry, 64))
	}
	return Key(entry)
}

// Value returns a value that a rule counts by. It masks the value, unless it can't be a secret: it is an address, given
// in bytes, or of a kind that clients don't choose.
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

// Network parses the value of a subject that is an address: 4 bytes of IPv4, 8 bytes of IPv6, or a binary prefix if the
// rule sets its length.
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

// Key returns a client's key with its middle masked. It masks even a key that looks like a pattern or an address,
// because that may be a secret.
//
// It shows at most a third of the key, and hides at least twelve characters, so that nobody can guess them. For shorter
// keys, it shows one or two characters.
func Key(key string) string {
	n := utf8.RuneCountInString(key)
	shown := max(min(n/3, n-12, 12), min(n/6, 2))
	tail := shown / 3
	return Printable(First(key, shown-tail) + "…" + Last(key, tail))
}
