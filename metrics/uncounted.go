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

// outageEnds is how long after the last uncounted admission the gauges return to 0. Until then an alert can still read them.
const outageEnds = 5 * time.Minute

// uncounted counts the requests that were admitted without being counted, and estimates how many keys sent them: with a
// HyperLogLog, which is about 3% off. It holds hashes, and no key can be read from it.
type uncounted struct {
	mu        sync.Mutex // guards the rest
	requests  uint64
	last      time.Time // the last admission
	registers [1 << registerBits]uint8
}

const registerBits = 10

// add counts a request that charge c let through.
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

// endLocked forgets an outage that is over.
func (u *uncounted) endLocked(now time.Time) {
	if now.Sub(u.last) >= outageEnds {
		u.requests, u.registers = 0, [len(u.registers)]uint8{}
	}
}

// keyHash hashes the client: its key, else its user, else its address, else what the limit counts by.
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

// collect shows the outage, and 0 without one if there is a store that can be lost.
func (u *uncounted) collect(ch chan<- prometheus.Metric, now time.Time, always bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.endLocked(now)
	if u.requests > 0 || always {
		gauge(ch, uncountedRequests, float64(u.requests))
		gauge(ch, uncountedKeys, u.keysLocked())
	}
}

// keysLocked estimates how many distinct keys were added: by the empty registers while there are few keys.
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
