package httplimit

import (
	"net/http"
	"net/netip"
	"strings"
)

// ClientIP is the address of the client: the peer's, or, when the peer is a
// trusted proxy, the last address in X-Forwarded-For that isn't one. The header
// is read from right to left, since only what trusted proxies appended is true; everything left
// of the first stranger is that stranger's claim. An entry that can't be read ends the walk. IPv4 proxies are to be given
// as IPv4 prefixes; [NewIdentifier] brings them into that form.
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
				return ip // garbage: what the last trusted proxy is known to have seen is all there is
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
	ip, _ := parseHop(remote) // a unix socket has no address
	return ip
}

// parseHop reads one entry: an address, with or without brackets, port and zone.
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

// fold brings an address to one form: IPv4 in IPv6 clothes is IPv4, and a zone
// is the business of the machine it names an interface of.
func fold(ip netip.Addr) netip.Addr { return ip.Unmap().WithZone("") }

func contains(nets []netip.Prefix, ip netip.Addr) bool {
	for _, n := range nets {
		if n.Contains(ip) {
			return true
		}
	}
	return false
}
