// Package edge has code that several edges of a node share. An edge is a way for requests to reach the limiter, such as
// the check API, the gateway, forward auth, or Envoy's services.
package edge

import (
	"bytes"
	"net/http"
	"net/netip"
	"slices"
	"sync"

	"github.com/weirhq/weir/httplimit"
)

// Overloaded is the error message for a request that was shed.
const Overloaded = "this node is overloaded: try again shortly, or ask another"

// DefaultAnswerer returns a. If a is nil, it returns an Answerer that writes the default headers.
func DefaultAnswerer(a *httplimit.Answerer) *httplimit.Answerer {
	if a == nil {
		var err error
		if a, err = httplimit.NewAnswerer(httplimit.Answers{}); err != nil {
			panic(err) // can't happen: the defaults are valid
		}
	}
	return a
}

// Network returns the range of addresses that counts as one client: a single IPv4 address, or an IPv6 /64.
func Network(ip netip.Addr) netip.Prefix {
	ip = ip.Unmap().WithZone("")
	if ip.Is6() {
		return netip.PrefixFrom(ip, 64).Masked()
	}
	return netip.PrefixFrom(ip, ip.BitLen())
}

// Trusts reports whether an address is in one of the trusted ranges. IPv4 ranges may be written in IPv6 notation.
func Trusts(proxies []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(proxies, func(p netip.Prefix) bool {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		return p.Contains(ip)
	})
}

// Recorder records a response, and doesn't send it.
type Recorder struct {
	Status int // 0 means 200
	Head   http.Header
	Body   bytes.Buffer
}

var _ http.ResponseWriter = (*Recorder)(nil)

// Header returns the recorded response's header.
func (r *Recorder) Header() http.Header { return r.Head }

// WriteHeader records the status.
func (r *Recorder) WriteHeader(status int) { r.Status = status }

func (r *Recorder) Write(b []byte) (int, error) { return r.Body.Write(b) }

// Cache keeps values that cost more to make than to look up. It holds at most two generations of values. A caller that
// keeps using new keys can therefore only evict older values, and not make the cache grow. The zero Cache is empty. It
// is safe for concurrent use.
type Cache[K comparable, V any] struct {
	mu         sync.Mutex
	young, old map[K]cached[K, V] // guarded by mu
}

// cached is a value with its own copy of the key. The key of a lookup may be a part of a larger text that must not be
// kept.
type cached[K comparable, V any] struct {
	key   K
	value V
}

// Generation is how many values a generation holds.
const Generation = 1024

// Get returns the value for a key. If it isn't cached, Get calls make, which returns the value, and a copy of the key
// under which it is cached. Errors aren't cached.
func (c *Cache[K, V]) Get(key K, make func(K) (K, V, error)) (V, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.young[key]; ok {
		return e.value, nil
	}
	e, ok := c.old[key]
	if !ok {
		var err error
		if e.key, e.value, err = make(key); err != nil {
			return e.value, err
		}
	}
	if c.young == nil || len(c.young) == Generation {
		c.old, c.young = c.young, map[K]cached[K, V]{}
	}
	c.young[e.key] = e
	return e.value, nil
}
