package metrics

import (
	"hash/maphash"
	"math"
	"math/bits"
	"net/netip"
	"sync/atomic"
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

// uncounted counts the requests that were admitted without being counted, and estimates how many keys sent them.
type uncounted struct{ now atomic.Pointer[outage] }

// outage is a HyperLogLog of keys: 4 KiB, and about 3% off. It holds hashes, and no key can be read from it.
type outage struct {
	requests  atomic.Uint64
	last      atomic.Int64 // Unix seconds of the last admission
	registers [1 << registerBits]atomic.Uint32
}

const registerBits = 10

// add counts a request that charge c let through.
func (u *uncounted) add(seed maphash.Seed, req *weir.Request, c *counter.Charge, now time.Time) {
	o := u.at(now)
	for o == nil {
		fresh := new(outage)
		fresh.last.Store(now.Unix())
		u.now.CompareAndSwap(nil, fresh)
		o = u.at(now)
	}
	o.requests.Add(1)
	if o.last.Load() != now.Unix() {
		o.last.Store(now.Unix())
	}
	h := keyHash(seed, req, c)
	r := &o.registers[h>>(64-registerBits)]
	for rank := uint32(bits.LeadingZeros64(h<<registerBits|1<<(registerBits-1)) + 1); ; {
		was := r.Load()
		if was >= rank || r.CompareAndSwap(was, rank) {
			return
		}
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

// at returns the outage at the given time, or nil if the last one is over.
func (u *uncounted) at(now time.Time) *outage {
	o := u.now.Load()
	if o != nil && now.Sub(time.Unix(o.last.Load(), 0)) >= outageEnds {
		u.now.CompareAndSwap(o, nil)
		return nil
	}
	return o
}

// collect shows the outage, and 0 without one if there is a store that can be lost.
func (u *uncounted) collect(ch chan<- prometheus.Metric, now time.Time, always bool) {
	requests, keys := 0., 0.
	if o := u.at(now); o != nil {
		requests, keys = float64(o.requests.Load()), o.keys()
	} else if !always {
		return
	}
	gauge(ch, uncountedRequests, requests)
	gauge(ch, uncountedKeys, keys)
}

// keys estimates how many distinct keys were added: by the empty registers while there are few keys.
func (o *outage) keys() float64 {
	const m = float64(1 << registerBits)
	sum, empty := 0., 0.
	for i := range o.registers {
		rank := o.registers[i].Load()
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
