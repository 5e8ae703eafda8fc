package metrics

import (
	"hash/maphash"
	"math"
	"math/bits"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

var (
	uncountedRequests = desc("uncounted_requests", "Requests admitted without being counted, in this outage; 0 when there was none for five minutes.")
	uncountedKeys     = desc("uncounted_keys", "About how many keys those requests came from.")
)

// outageEnds is how long after the last uncounted request the gauges return to 0. Until then, an alert can still read them.
const outageEnds = 5 * time.Minute

// uncounted counts the requests that were admitted without being counted. It estimates how many keys sent them, within about
// 3%, with a HyperLogLog. This stores parts of hashes, which reveal no key.
type uncounted struct {
	mu        sync.Mutex // guards the fields below
	requests  uint64
	last      time.Time // when the last such request was admitted
	registers [1 << registerBits]uint8
}

const registerBits = 10

// add counts a request that was admitted although charge c couldn't be counted.
func (u *uncounted) add(seed maphash.Seed, req *weir.Request, c *counter.Charge, now time.Time) {
	h := keyHash(seed, req, c)
	rank := uint8(bits.LeadingZeros64(h<<registerBits|1<<(registerBits-1)) + 1)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.endLocked(now)
	u.requests++
	u.last = now
	r := &u.registers[h>>(64-registerBits)]
	*r = max(*r, rank)
}

// endLocked resets the counts if the outage is over.
func (u *uncounted) endLocked(now time.Time) {
	if now.Sub(u.last) >= outageEnds {
		u.requests, u.registers = 0, [len(u.registers)]uint8{}
	}
}

// keyHash hashes the client's API key, or else its user, its IP address, or the limit's subject.
func keyHash(seed maphash.Seed, req *weir.Request, c *counter.Charge) uint64 {
	switch {
	case req.APIKey != "":
		return maphash.String(seed, req.APIKey)
	case req.User != "":
		return maphash.String(seed, req.User)
	case req.IP != netip.Addr{}:
		return maphash.Comparable(seed, req.IP)
	}
	return maphash.Bytes(seed, c.Subject)
}

// collect shows the gauges. If there is no outage, it shows zeros if always is true, and nothing otherwise.
func (u *uncounted) collect(ch chan<- prometheus.Metric, now time.Time, always bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.endLocked(now)
	if u.requests > 0 || always {
		gauge(ch, uncountedRequests, float64(u.requests))
		gauge(ch, uncountedKeys, u.keysLocked())
	}
}

// keysLocked estimates how many distinct keys were added. While there are few keys, it counts the empty registers instead.
func (u *uncounted) keysLocked() float64 {
	const m = float64(1 << registerBits)
	sum, empty := 0., 0.
	for _, rank := range u.registers {
		sum += math.Ldexp(1, -int(rank))
		if rank == 0 {
			empty++
		}
	}
	estimate := 0.7213 / (1 + 1.079/m) * m * m / sum
	if estimate <= 2.5*m && empty > 0 {
		estimate = m * math.Log(m/empty)
	}
	return math.Round(estimate)
}
