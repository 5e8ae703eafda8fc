package gateway

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weirhq/weir/internal/onclose"
)

// Door is a listener that closes connections which aren't worth a handshake. Those of trusted proxies, which carry many clients,
// it leaves alone.
type Door struct {
	net.Listener
	// Trusted are the proxies.
	Trusted []netip.Prefix
	// PerIP is how many connections an address may have open, of IPv6 a /64. 0 means any number.
	PerIP int
	// Unwelcome reports whether an address is to be turned away. Nil means that none is.
	Unwelcome func(netip.Addr) bool

	// TurnedAway and TooMany are connections that were closed.
	TurnedAway, TooMany atomic.Uint64

	mu   sync.Mutex
	open map[netip.Prefix]int // guarded by mu
}

// Accept waits for a connection that is let in.
func (d *Door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		addr, ok := c.RemoteAddr().(*net.TCPAddr)
		if !ok {
			return c, nil
		}
		ip := addr.AddrPort().Addr().Unmap().WithZone("")
		if slices.ContainsFunc(d.Trusted, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			return c, nil
		}
		if d.Unwelcome != nil && d.Unwelcome(ip) {
			d.TurnedAway.Add(1)
			turnAway(c)
			continue
		}
		if d.PerIP <= 0 {
			return c, nil
		}
		of := netip.PrefixFrom(ip, ip.BitLen())
		if ip.Is6() {
			of = netip.PrefixFrom(ip, 64).Masked()
		}
		if !d.enter(of) {
			d.TooMany.Add(1)
			turnAway(c)
			continue
		}
		return onclose.Wrap(c, func() { d.leave(of) }), nil
	}
}

// turnAway closes a connection without the goodbyes that a peer could take its time with.
func turnAway(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

func (d *Door) enter(of netip.Prefix) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open[of] >= d.PerIP {
		return false
	}
	if d.open == nil {
		d.open = map[netip.Prefix]int{}
	}
	d.open[of]++
	return true
}

func (d *Door) leave(of netip.Prefix) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open[of]--; d.open[of] == 0 {
		delete(d.open, of)
	}
}
