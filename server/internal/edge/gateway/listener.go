package gateway

import (
	"math"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/weirhq/weir/internal/inuse"
	"github.com/weirhq/weir/internal/onclose"
	"github.com/weirhq/weir/server/internal/edge"
)

// Door is a listener that closes unwanted connections before their TLS handshake. It always accepts
// trusted proxies, which carry many clients.
type Door struct {
	net.Listener
	// Trusted are the addresses of trusted proxies.
	Trusted []netip.Prefix
	// PerIP is the maximum number of open connections of an IPv4 address, or an IPv6 /64. Zero
	// means no limit.
	PerIP int
	// Unwelcome reports whether to close connections from an address. If nil, it is false for all.
	Unwelcome func(netip.Addr) bool

	// TurnedAway counts connections that were closed because of Unwelcome, and TooMany those closed
	// because of PerIP.
	TurnedAway, TooMany atomic.Uint64

	open inuse.Places[netip.Prefix]
}

// Accept returns the next connection that isn't closed.
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
		if edge.Trusts(d.Trusted, ip) {
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
		of := edge.Network(ip)
		if !d.open.Enter(of, math.MaxInt64, int64(d.PerIP)) {
			d.TooMany.Add(1)
			turnAway(c)
			continue
		}
		return onclose.Wrap(c, func() { d.open.Leave(of) }), nil
	}
}

// turnAway closes a connection at once, without waiting for the client.
func turnAway(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
