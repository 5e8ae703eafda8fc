package httplimit

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// ClientIP returns the client's address: the peer's, or, if the peer is a trusted proxy, the last
// address in X-Forwarded-For that isn't a trusted proxy's. It reads the header from right to left,
// because only what trusted proxies appended can be believed. An entry that can't be parsed ends
// the search. Give IPv4 proxies as IPv4 prefixes; [NewIdentifier] converts them to that form.
func ClientIP(r *http.Request, trusted []netip.Prefix) netip.Addr {
	ip := peerIP(r.RemoteAddr)
	if len(trusted) == 0 || !contains(trusted, ip) {
		return ip
	}
	lines := r.Header["X-Forwarded-For"]
	for i := len(lines) - 1; i >= 0; i-- {
		for line, more := lines[i], true; more; {
			last := line
			if at := strings.LastIndexByte(line, ','); at >= 0 {
				line, last = line[:at], line[at+1:]
			} else {
				more = false
			}
			hop, ok := parseHop(strings.TrimSpace(last))
			if !ok {
				return ip // unreadable: believe only what trusted proxies have seen
			}
			ip = hop
			if !contains(trusted, ip) {
				return ip
			}
		}
	}
	return ip
}

func peerIP(remote string) netip.Addr {
	if ap, err := netip.ParseAddrPort(remote); err == nil {
		return fold(ap.Addr())
	}
	ip, _ := parseHop(remote) // for a Unix socket the result is the zero Addr
	return ip
}

// parseHop parses one entry: an address with or without brackets, port and zone.
func parseHop(s string) (netip.Addr, bool) {
	bare := s
	if n := len(s); n > 1 && s[0] == '[' && s[n-1] == ']' {
		bare = s[1 : n-1]
	}
	if ip, err := netip.ParseAddr(bare); err == nil {
		return fold(ip), true
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return fold(ap.Addr()), true
	}
	return netip.Addr{}, false
}

// fold normalizes an address: an IPv4-mapped IPv6 address becomes IPv4, and a zone, which has no
// meaning on other machines, is dropped.
func fold(ip netip.Addr) netip.Addr { return ip.Unmap().WithZone("") }

func contains(nets []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(nets, func(n netip.Prefix) bool { return n.Contains(ip) })
}
