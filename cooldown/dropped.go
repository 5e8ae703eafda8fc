package cooldown

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// dropped holds the addresses of clients whose connections are closed before a handshake.
type dropped struct {
	any      atomic.Bool
	mu       sync.RWMutex
	networks map[netip.Prefix]int64 // when the drop ends, in µs; guarded by mu
}

// set drops connections from a client's address until the given time. If until is 0, it stops dropping them. The caller holds
// the client's shard's lock.
func (d *dropped) set(x *client, until int64) {
	if !x.network.IsValid() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if until > 0 {
		d.networks[x.network] = until
	} else {
		delete(d.networks, x.network)
		x.network = netip.Prefix{}
	}
	d.any.Store(len(d.networks) > 0)
}

// Dropped reports whether to close connections from an address before reading from them. That is so if a rule that counts by IP
// address alone has refused the address more than DropAfter times in a row, and the address must still wait.
func (g *Guard) Dropped(addr netip.Addr) bool {
	d := &g.dropped
	if !d.any.Load() {
		return false
	}
	addr = addr.Unmap().WithZone("")
	now := g.now()
	d.mu.RLock()
	defer d.mu.RUnlock()
	for bits := range addr.BitLen() + 1 {
		if p, _ := addr.Prefix(bits); now < d.networks[p] {
			return true
		}
	}
	return false
}
