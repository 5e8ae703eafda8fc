package metrics

import (
	"hash/maphash"
	"math"
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
// 3% of up to ten million, by linear counting: a hash of each key sets one bit. The bits reveal no key.
type uncounted struct {
	mu       sync.Mutex // guards the fields below
	requests uint64
	last     time.Time // when the last such request was admitted
	bits     []uint64  // nil unless there is an outage
	set      int       // how many bits are set
}

const numBits = 1 << 20

// add counts a request that was admitted although charge c couldn't be counted.
func (u *uncounted) add(seed maphash.Seed, req *weir.Request, c *counter.Charge, now time.Time) {
	h := keyHash(seed, req, c) % numBits
	u.mu.Lock()
	defer u.mu.Unlock()
	u.endLocked(now)
	u.requests++
	u.last = now
	if u.bits == nil {
		u.bits = make([]uint64, numBits/64)
	}
	if word, bit := &u.bits[h/64], uint64(1)<<(h%64); *word&bit == 0 {
		*word |= bit
		u.set++
	}
}

func (u *uncounted) endLocked(now time.Time) {
	if now.Sub(u.last) >= outageEnds {
		u.requests, u.bits, u.set = 0, nil, 0
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
		gauge(ch, uncountedKeys, math.Round(numBits*math.Log(numBits/float64(max(1, numBits-u.set)))))
	}
}
