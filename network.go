package weir

import (
	"cmp"
	"net/netip"
)

// networks are how many bits of an IPv4 and of an IPv6 address count. All clients of one network share a counter.
type networks struct{ v4, v6 uint8 }

// usualNetworks: an IPv4 address mostly is a client's alone, or that of the NAT in front of it. Of IPv6 a client is given a /64
// at least, and has any address in it.
var usualNetworks = networks{32, 64}

// or takes what isn't given from others.
func (n networks) or(o networks) networks { return networks{cmp.Or(n.v4, o.v4), cmp.Or(n.v6, o.v6)} }

// serverNetworks are those of a Limiter's options, as far as they can be.
func serverNetworks(v4, v6 int) networks {
	n := networks{uint8(min(max(v4, 0), 32)), uint8(min(max(v6, 0), 128))}
	return n.or(usualNetworks)
}

// of is the network that an address is counted as. It isn't valid if there is no address.
func (n networks) of(ip netip.Addr) netip.Prefix {
	ip = ip.Unmap().WithZone("")
	bits := n.v6
	if ip.Is4() {
		bits = n.v4
	}
	p, _ := ip.Prefix(int(bits))
	return p
}

// appendIP appends the network that the request's address is counted as: the 4 or 8 bytes of a usual one, and of another one all
// bytes of its address and its length. So a rule whose prefix changes begins with counters of its own.
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
