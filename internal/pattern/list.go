package pattern

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
)

// List is an allow or deny list. Its entries are keys, patterns of keys, addresses, and ranges of addresses.
type List struct {
	keys    Keys
	nets    map[netip.Prefix]string // the entries with addresses, by their range in IPv6
	lengths []int                   // the different lengths of the prefixes in nets
	entries []string
}

// Empty reports whether the list has no entries.
func (l *List) Empty() bool { return len(l.entries) == 0 }

// Add adds an entry. It returns the entry's range of addresses, or an invalid prefix if the entry is a pattern of keys.
func (l *List) Add(entry string) (netip.Prefix, error) {
	entry = strings.TrimSpace(entry)
	net, err := parseNet(entry)
	if err != nil {
		return net, err
	}
	l.entries = append(l.entries, entry)
	if !net.IsValid() {
		l.keys.Add(entry, int32(len(l.entries)-1))
		return net, nil
	}
	if l.nets == nil {
		l.nets = map[netip.Prefix]string{}
	}
	wide := inIPv6(net)
	l.nets[wide] = entry
	if !slices.Contains(l.lengths, wide.Bits()) {
		l.lengths = append(l.lengths, wide.Bits())
	}
	return net, nil
}

// parseNet returns the range of addresses in an entry, or an invalid prefix if the entry is a pattern of keys. An entry
// that looks like an address but isn't a valid one is an error. Otherwise it would become a pattern that no key
// matches.
func parseNet(entry string) (net netip.Prefix, err error) {
	const ranges = "write ranges as 203.0.113.0/24 or 2001:db8::/32"
	if net, err = netip.ParsePrefix(entry); err == nil {
		switch {
		case !net.Addr().Is4In6():
			return net, nil
		case net.Bits() < 96:
			return net, fmt.Errorf("%q mixes IPv4 and IPv6 addresses: %s", entry, ranges)
		}
		return netip.PrefixFrom(net.Addr().Unmap(), net.Bits()-96), nil
	}
	if addr, err := netip.ParseAddr(entry); err == nil {
		addr = addr.Unmap().WithZone("")
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	if addr, err := netip.ParseAddrPort(entry); err == nil {
		return net, fmt.Errorf("%q clients have no fixed port: write %s", entry, addr.Addr())
	}
	if addr, ok := strings.CutPrefix(entry, "ip:"); ok && looksLikeAddress(addr) {
		return net, fmt.Errorf("%q write %s", entry, addr)
	}
	from, to, dash := strings.Cut(entry, "-")
	_, notFrom := netip.ParseAddr(strings.TrimSpace(from))
	host, bits, slash := strings.Cut(entry, "/")
	if looksLikeAddress(host) ||
		dash && notFrom == nil && strings.Trim(to, " 0123456789abcdefABCDEF.:") == "" ||
		slash && host != "" && bits != "" && strings.Trim(host+bits, "0123456789.") == "" {
		return net, fmt.Errorf("%q is neither a key nor an IP range: %s", entry, ranges)
	}
	return netip.Prefix{}, nil
}

func looksLikeAddress(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	return strings.Count(s, ".") >= 2 && strings.Trim(s, "0123456789.*") == "" || strings.Count(s, ":") >= 2 && strings.Trim(s, "0123456789abcdefABCDEF:.*") == ""
}

// inIPv6 converts a range to a range of IPv6 addresses. It maps IPv4 addresses into IPv6.
func inIPv6(n netip.Prefix) netip.Prefix {
	ip := n.Addr()
	return netip.PrefixFrom(netip.AddrFrom16(ip.As16()), n.Bits()+128-ip.BitLen()).Masked()
}

// Match returns an entry that matches the key or contains the address, or "".
func (l *List) Match(key string, ip netip.Addr) string {
	if entry := l.MatchKey(key); entry != "" || len(l.nets) == 0 || !ip.IsValid() {
		return entry
	}
	return l.matchNet(inIPv6(netip.PrefixFrom(ip, ip.BitLen())))
}

// Covers reports whether the list has the given entry, or another one that includes it.
func (l *List) Covers(entry string) bool {
	entry = strings.TrimSpace(entry)
	switch net, err := parseNet(entry); {
	case err != nil:
		return false
	case net.IsValid():
		return l.matchNet(inIPv6(net)) != ""
	}
	return l.MatchKey(entry) != "" // entry may be a pattern: see Keys.FirstWithin
}

// matchNet returns an entry that includes the given range, or "".
func (l *List) matchNet(net netip.Prefix) string {
	for _, n := range l.lengths {
		if n > net.Bits() || n < 96 && net.Addr().Is4In6() { // ranges of IPv6 addresses don't include IPv4 addresses
			continue
		}
		wider, _ := net.Addr().Prefix(n)
		if entry := l.nets[wider]; entry != "" {
			return entry
		}
	}
	return ""
}

// MatchKey returns an entry that matches the key, or "".
func (l *List) MatchKey(key string) string {
	if key == "" {
		return ""
	}
	return l.MatchWithin(key, nil)
}

// MatchWithin is MatchKey with a budget.
func (l *List) MatchWithin(key string, b *Budget) string {
	if id := l.keys.FirstWithin(key, math.MaxInt32, b); id >= 0 {
		return l.entries[id]
	}
	return ""
}
