package serve

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/observer"
	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/internal/admin"
)

const (
	slot   = time.Second
	slots  = 120 // how many seconds live keeps
	lately = 10  // number of slots over which rates and percentiles are computed
)

// live has a node's figures of the last two minutes. Once a second, tick reads the counters of the metrics into it. So
// it costs checks nothing, and its figures agree with the metrics.
type live struct {
	mu      sync.Mutex   // guards all fields except failed
	series  admin.Series // the last slots
	slot    int64        // number of slots since the node was started
	counted metrics.Sum  // the counts up to and including the last slot
	past    []moment     // snapshots at the end of the last ten slots, and of the one before them
	trouble troubles
	failure error // the last error of the store in a check
	// failed is the first error of the store since the last tick, or nil.
	failed atomic.Pointer[error]

	// memory and leases are computed by walking over all counters. This isn't done again before walkAgain.
	memory    memstore.Stats
	leases    admin.Lease
	walkAgain time.Time
}

type moment struct {
	at           time.Time
	sum          metrics.Sum
	asked, local uint64 // charges that were sent to Redis, and charges that leases decided
	shards       map[string]redisstore.TimeStats
}

// busy is implemented by everything that bounds how many requests it decides at a time.
type busy interface{ InFlight() int }

// followLive updates live once a second until ctx is done.
func (n *node) followLive(ctx context.Context) error {
	for rediscall.Sleep(ctx, slot) {
		n.tick()
	}
	return nil
}

// tick takes a snapshot of the metrics, and looks for problems. It is called once a second.
func (n *node) tick() {
	m := moment{at: time.Now(), sum: n.metrics.Sum()}
	if n.shared != nil {
		m.asked, m.local = n.shared.Leases.Charges()
		m.shards = map[string]redisstore.TimeStats{}
		for _, sh := range n.redis.Health().Shards {
			m.shards[sh.Name] = sh.Time
		}
	}
	l := &n.live
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.failed.Swap(nil); err != nil {
		l.failure = *err
	}
	l.count(&m.sum, int64(m.at.Sub(n.began)/slot))
	l.past = append(l.past[max(0, len(l.past)-lately):], m)
	n.lookForTroubleLocked(m.at)
}

// recently returns two snapshots: the newest one, and the one from ten seconds earlier. Rates are computed from the
// difference.
func (l *live) recently() (first, last *moment) { return &l.past[0], &l.past[len(l.past)-1] }

// count distributes the decisions since the last call over the seconds that have passed since then. Usually that is one
// second.
func (l *live) count(sum *metrics.Sum, now int64) {
	s, passed := &l.series, now-l.slot
	if s.Decisions == nil {
		*s = admin.Series{Decisions: make([]uint64, slots), Refused: make([]uint64, slots), Degraded: make([]uint64, slots),
			P50: make([]*float64, slots), P99: make([]*float64, slots)}
	}
	if passed < 1 {
		return // the current second hasn't ended
	}
	since := sum.Since(&l.counted)
	var decisions, refused uint64
	since.Decisions(func(_ string, _ weir.Reason, allowed bool, n uint64) {
		decisions += n
		if !allowed {
			refused += n
		}
	})
	p50, p99 := percentiles(metrics.TimeBounds, since.Times[:])
	for i := max(0, passed-slots); i < passed; i++ {
		part := func(n uint64) uint64 { return n*uint64(i+1)/uint64(passed) - n*uint64(i)/uint64(passed) }
		s.Decisions, s.Refused = append(s.Decisions[1:], part(decisions)), append(s.Refused[1:], part(refused))
		s.Degraded = append(s.Degraded[1:], part(since.Degraded))
		s.P50, s.P99 = append(s.P50[1:], p50), append(s.P99[1:], p99)
	}
	l.slot, l.counted = now, *sum
}

// now handles GET /v1/now from memory. It calls neither other nodes nor the store.
func (n *node) now() admin.Now {
	n.live.mu.Lock()
	defer n.live.mu.Unlock()
	l := &n.live
	n.walkLocked()
	first, last := l.recently()
	doc, modes := n.rules.InForce(), n.failureModes()
	out := admin.Now{
		Node: n.self.Name, Version: n.self.Version, Started: *admin.Moment(n.began), At: *admin.Moment(last.at), SlotSeconds: int(slot / time.Second),
		Series: l.series, MaxInFlight: n.config.MaxInFlight, RulesVersion: doc.Version, RulesSince: admin.Moment(doc.Since),
		Memory:  admin.Memory{Counters: l.memory.Counters, Bytes: l.memory.Bytes, Cap: cmp.Or(n.config.MemoryCap, memstore.DefaultMemoryCap), Evictions: l.memory.Evicted},
		Trouble: l.trouble.list, FailureModes: modes.list, FailureTotals: modes.totals,
	}
	for _, b := range n.busy {
		out.InFlight = max(out.InFlight, b.InFlight())
	}
	out.Totals, out.Latency = rates(first, last)
	out.Store = n.nowStore(first, last)
	if n.shared != nil {
		lease := l.leases
		out.Lease = &lease
		asked, local := last.asked-first.asked, last.local-first.local
		if all := asked + local; all > 0 {
			share := float64(local) / float64(all)
			out.Lease.LocalShare = &share
		}
	}
	return out
}

// walkLocked updates memory and leases. It does so rarely enough to use at most a fiftieth of a core.
func (n *node) walkLocked() {
	l := &n.live
	begun := time.Now()
	if begun.Before(l.walkAgain) {
		return
	}
	l.memory = n.counters.Stats()
	if n.shared != nil {
		st := n.shared.Leases.Stats()
		l.leases = admin.Lease{Tokens: st.Tokens, Counters: st.Counters}
	}
	done := time.Now()
	l.walkAgain = done.Add(max(slot/2, 50*done.Sub(begun)))
}

func rates(first, last *moment) (r admin.Rates, l admin.Latency) {
	r = admin.Rates{ByReason: map[string]float64{}, ByEdge: map[string]admin.EdgeRate{}}
	since, took := last.sum.Since(&first.sum), last.at.Sub(first.at)
	r.Over, l.Over = took.Round(time.Millisecond).Seconds(), took.Round(time.Millisecond).Seconds()
	if took <= 0 {
		return r, l
	}
	rate := func(n uint64) float64 { return float64(n) / took.Seconds() }
	since.Decisions(func(edge string, reason weir.Reason, allowed bool, n uint64) {
		at := r.ByEdge[edge]
		at.Decisions += rate(n)
		r.Decisions += rate(n)
		if !allowed {
			at.Refused += rate(n)
			r.Refused += rate(n)
		}
		r.ByEdge[edge] = at
		r.ByReason[observer.Reason(reason)] += rate(n)
	})
	r.Degraded = rate(since.Degraded)
	l.P50, l.P99 = percentiles(metrics.TimeBounds, since.Times[:])
	for _, n := range since.Times {
		l.Measured += n
	}
	return r, l
}

// nowStore describes the store, and how long calls to it took between two snapshots.
func (n *node) nowStore(first, last *moment) admin.NowStore {
	s := n.storeStatus()
	out := admin.NowStore{Store: s.Store, Shards: []admin.NowShard{}}
	out.Warning = "" // Now.Trouble includes it
	for _, sh := range s.Shards {
		one := admin.NowShard{Shard: sh, Breaker: "closed"}
		switch {
		case !sh.Up:
			one.Breaker = "open"
		case sh.Doubted:
			one.Breaker = "probing"
		}
		calls := last.shards[sh.Name].Buckets
		for i, n := range first.shards[sh.Name].Buckets { // if the shard is new, there is nothing to subtract
			calls[i] -= min(n, calls[i]) // if the shard was removed and added again, its counts have started over
		}
		one.P50, one.P99 = percentiles(storeBounds, calls[:])
		out.Shards = append(out.Shards, one)
	}
	return out
}

var storeBounds = func() (seconds []float64) {
	for _, b := range redisstore.TimeBounds {
		seconds = append(seconds, b.Seconds())
	}
	return seconds
}()

// percentiles estimates two percentiles of a histogram, in microseconds. If the histogram is empty, they are nil.
func percentiles(bounds []float64, buckets []uint64) (p50, p99 *float64) {
	return percentile(0.5, bounds, buckets), percentile(0.99, bounds, buckets)
}

func percentile(q float64, bounds []float64, buckets []uint64) *float64 {
	all := uint64(0)
	for _, n := range buckets {
		all += n
	}
	if all == 0 {
		return nil
	}
	rank, below, from := q*float64(all), 0., 0.
	for i, bound := range bounds {
		in := float64(buckets[i])
		if below+in >= rank && in > 0 {
			return micros(from + (bound-from)*(rank-below)/in)
		}
		below, from = below+in, bound
	}
	return micros(from)
}

func micros(seconds float64) *float64 {
	us := float64(time.Duration(seconds*float64(time.Second)).Round(10*time.Nanosecond)) / float64(time.Microsecond)
	return &us
}
