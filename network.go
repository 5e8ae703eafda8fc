package weir

import (
	"cmp"
	"net/netip"
)

// networks says how many bits of an IPv4 and of an IPv6 address count. All clients in the same network share a counter.
type networks struct{ v4, v6 uint8 }

// usualNetworks count single IPv4 addresses and IPv6 /64s, since a client has at least a /64 and may use any address in it.
var usualNetworks = networks{32, 64}

// or replaces zeros with the numbers of o.
func (n networks) or(o networks) networks { return networks{cmp.Or(n.v4, o.v4), cmp.Or(n.v6, o.v6)} }

// serverNetworks returns the networks of a Limiter's options, limited to valid lengths.
func serverNetworks(v4, v6 int) networks {
	n := networks{uint8(min(max(v4, 0), 32)), uint8(min(max(v6, 0), 128))}
	return n.or(usualNetworks)
}

// of returns the network that an address belongs to. It is invalid if there is no address.
func (n networks) of(ip netip.Addr) netip.Prefix {
	ip = ip.Unmap().WithZone("")
	bits := n.v6
	if ip.Is4() {
		bits = n.v4
	}
	p, _ := ip.Prefix(int(bits))
	return p
}

// appendIP appends the network of the request's address. For a /32 of IPv4 or a /64 of IPv6, these are its 4 or 8 bytes;
// otherwise, all bytes of the address and the prefix length. So if a rule's prefix length changes, its counters start over.
func (m *match) appendIP(req *Request, by networks, last bool) {
	p := by.of(req.IP)
	all := p.Addr().As16()
	counted := all[:]
	if p.Addr().Is4() {
		counted = all[12:]
	}
	var few [17]byte
	switch n := p.Bits(); {
	case !p.IsValid():
		counted = nil
		m.nameless = m.nameless || req.APIKey == "" && req.User == "" && req.Org == ""
	case p.Addr().Is4() && n == 32:
	case p.Addr().Is6() && n == 64:
		counted = all[:8]
	default:
		counted = append(append(few[:0], counted...), byte(n))
	}
	if !last {
		m.subjects = append(m.subjects, byte(len(counted)))
	}
	m.subjects = append(m.subjects, counted...)
}
