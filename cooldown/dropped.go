package cooldown

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/weirhq/weir/internal/shown"
)

// dropped are the addresses that are offenders themselves: no connection of theirs is worth a handshake.
type dropped struct {
	any      atomic.Bool
	mu       sync.RWMutex
	networks map[netip.Prefix]int64 // until when, in µs; guarded by mu
	lengths  map[int]int            // how many of networks have so many bits; guarded by mu
}

// set has a client's address dropped until then. 0 means that it isn't any more. The client's shard is locked.
func (d *dropped) set(x *client, until int64) {
	if !x.network.IsValid() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, known := d.networks[x.network]
	switch bits := x.network.Bits(); {
	case until > 0 && !known:
		if d.networks == nil {
			d.networks, d.lengths = map[netip.Prefix]int64{}, map[int]int{}
		}
		d.lengths[bits]++
		fallthrough
	case until > 0:
		d.networks[x.network] = until
	case known:
		delete(d.networks, x.network)
		if d.lengths[bits]--; d.lengths[bits] == 0 {
			delete(d.lengths, bits)
		}
		x.network = netip.Prefix{}
	}
	d.any.Store(len(d.networks) > 0)
}

// Dropped reports whether connections of an address are to be closed before anything is read from them: a rule that counts by
// address alone has refused it so often in a row that it drops it, and the address is to wait still.
func (g *Guard) Dropped(addr netip.Addr) bool {
	d := &g.dropped
	if !d.any.Load() {
		return false
	}
	addr = addr.Unmap().WithZone("")
	d.mu.RLock()
	defer d.mu.RUnlock()
	for bits := range d.lengths {
		if p, err := addr.Prefix(bits); err == nil && g.now() < d.networks[p] {
			return true
		}
	}
	return false
}

// networkOf is the address that a client is, if a rule counts by nothing else.
func networkOf(values [][2]string) netip.Prefix {
	if len(values) != 1 {
		return netip.Prefix{}
	}
	p, _ := shown.Network(values[0][1])
	return p
}
