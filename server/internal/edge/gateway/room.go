package gateway

import (
	"net/netip"
	"sync"

	"github.com/weirhq/weir/httplimit"
)

// maxRoom is how many bytes of bodies are held in memory before their requests are decided.
const maxRoom = 64 << 20

// room is the memory for bodies that are read before their requests are decided. The zero value is empty.
//
// An address may hold a quarter of what it leaves free, which is a fifth of the room if nobody else holds any. Of several addresses,
// each leaves the next one most of what it found. A client without a verified key may hold half as much as its address. A verified
// client has a share like that of an address, and doesn't count toward its address: strangers behind the same address can't use up
// what it needs.
type room struct {
	mu        sync.Mutex
	taken     int64                  // guarded by mu
	addresses map[netip.Prefix]int64 // guarded by mu: bytes of the addresses that hold any
	clients   map[string]int64       // guarded by mu: bytes of the clients that hold any, by ID
}

// take takes n bytes for a client, and reports whether it may have them.
func (r *room) take(c *httplimit.Client, n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	free := maxRoom - r.taken - n
	share := free / 4
	if !c.Verified {
		if r.addresses[c.Address]+n > share {
			return false
		}
		share /= 2
	}
	if c.ID != "" && r.clients[c.ID]+n > share {
		return false
	}
	r.add(c, n)
	return true
}

// give returns n bytes.
func (r *room) give(c *httplimit.Client, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(c, -n)
}

func (r *room) add(c *httplimit.Client, n int64) {
	if r.taken += n; r.addresses == nil {
		r.addresses, r.clients = map[netip.Prefix]int64{}, map[string]int64{}
	}
	if !c.Verified {
		addTo(r.addresses, c.Address, n)
	}
	if c.ID != "" {
		addTo(r.clients, c.ID, n)
	}
}

func addTo[K comparable](m map[K]int64, key K, n int64) {
	if m[key] += n; m[key] == 0 {
		delete(m, key)
	}
}
