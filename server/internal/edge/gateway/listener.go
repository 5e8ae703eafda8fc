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

// Door is a listener that closes unwanted connections before the TLS handshake. It accepts all connections from trusted
// proxies, because they carry many clients.
type Door struct {
	net.Listener
	// Trusted are the addresses of trusted proxies.
	Trusted []netip.Prefix
	// PerIP is the maximum number of open connections from an IPv4 address or an IPv6 /64. Zero means no maximum.
	PerIP int
	// Unwelcome reports whether connections from an address should be closed. If nil, none are.
	Unwelcome func(netip.Addr) bool

	// TurnedAway counts the connections that were closed because of Unwelcome, and TooMany counts those that were
	// closed because of PerIP.
	TurnedAway, TooMany atomic.Uint64

	open inuse.Places[netip.Prefix]
}

// Accept returns the next connection that it doesn't close.
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

// turnAway closes a connection immediately, without waiting for the client.
func turnAway(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
