package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
	"github.com/weirhq/weir/lease"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/redisstore"
)

// Sources are the objects that metrics are read from at every scrape. Any of them may be nil.
type Sources struct {
	// Limiter provides the rules in force. If it is nil, removed rules never leave the metrics.
	Limiter *weir.Limiter
	Memory  *memstore.Store
	Redis   *redisstore.Store
	Leases  *lease.Store
	Guard   *cooldown.Guard
}

// Watch shows metrics of these sources, instead of those of an earlier call.
func (m *Metrics) Watch(s Sources) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sources = s
}

var (
	rulesVersion = desc("rules_version", "Version of the rules in force.")

	memoryCounters  = desc("memory_counters", "Counters in this process.")
	memoryBytes     = desc("memory_bytes", "Memory that they take.")
	memoryEvictions = desc("memory_evictions_total", "Counters evicted before they were full, for want of memory.")

	storeUp       = desc("store_up", "1 while the server of Redis answers, 0 while its limits are decided by their failure modes.", "shard")
	storeLost     = desc("store_lost_timestamp_seconds", "Since when the server of Redis is lost, in Unix time; 0 while it isn't.", "shard")
	storeKeys     = desc("store_keys_affected", "About how many keys are decided by failure modes, since their server is lost; 0 while it isn't.", "shard")
	storeEvicts   = desc("store_evicts", "1 if the server of Redis evicts counters when it is full, so that their limits start from zero; 0 if its maxmemory-policy is noeviction, or isn't known.", "shard")
	storeUnserved = desc("store_unserved_slots", "Slots of a Redis Cluster that are in use and have no server.")
	storeErrors   = desc("store_errors_total", "Calls to Redis that failed.", "shard", "kind")
	storeActs     = desc("store_acts_per_call", "Takes, returns and resets that shared a call to Redis.", "shard")
	storeDuration = desc("store_duration_seconds", "Time of calls to Redis, of those that failed, too.", "shard")
	clockDrift    = desc("clock_drift_seconds", "How far Redis' clock is ahead of this node's.")
	nodes         = desc("nodes", "Nodes that use this Redis, this one included.")

	leaseCharges  = desc("lease_charges_total", "Charges, by where they were decided; local ones are estimated from one request in sixteen.", "where")
	leaseTokens   = desc("lease_tokens", "Borrowed tokens that this node holds.")
	leaseCounters = desc("lease_counters", "Counters that leases know.")

	cooldowns      = desc("cooldowns", "Clients that are kept out since they kept coming while they were refused.")
	cooldownsBegun = desc("cooldowns_begun_total", "Cooldowns that this node has begun, those in shadow included.")
)

func (s *Sources) collect(ch chan<- prometheus.Metric) {
	if s.Limiter != nil {
		gauge(ch, rulesVersion, float64(s.Limiter.Rules().Version()))
	}
	if s.Memory != nil {
		st := s.Memory.Stats()
		gauge(ch, memoryCounters, float64(st.Counters))
		gauge(ch, memoryBytes, float64(st.Bytes))
		total(ch, memoryEvictions, st.Evicted)
	}
	if s.Redis != nil {
		collectRedis(ch, s.Redis)
	}
	if s.Leases != nil {
		st := s.Leases.Stats()
		total(ch, leaseCharges, st.Local, "local")
		total(ch, leaseCharges, st.Asked, "store")
		gauge(ch, leaseTokens, float64(st.Tokens))
		gauge(ch, leaseCounters, float64(st.Counters))
	}
	if s.Guard != nil {
		st := s.Guard.Stats()
		gauge(ch, cooldowns, float64(st.InForce))
		total(ch, cooldownsBegun, st.Begun)
	}
}

func collectRedis(ch chan<- prometheus.Metric, s *redisstore.Store) {
	gauge(ch, nodes, float64(s.Nodes()))
	gauge(ch, clockDrift, time.Until(s.Now()).Seconds())
	h := s.Health()
	gauge(ch, storeUnserved, float64(h.Unserved))
	for i, sh := range h.Shards {
		up, since, keys, evicts := 1., 0., 0., 0.
		if !sh.Up {
			up, since, keys = 0, float64(sh.Since.UnixMilli())/1e3, float64(sh.Keys)
		}
		if sh.Evicts != "" {
			evicts = 1
		}
		if h.Unserved > 0 && i == len(h.Shards)-1 {
			sh.Name = unservedSlots
		} else {
			gauge(ch, storeUp, up, sh.Name)
			gauge(ch, storeEvicts, evicts, sh.Name)
			for i, kind := range redisstore.Failures {
				total(ch, storeErrors, sh.Errors[i], sh.Name, kind)
			}
			ch <- prometheus.MustNewConstSummary(storeActs, sh.Calls, float64(sh.Acts), nil, sh.Name)
			ch <- &histogram{
				desc: storeDuration, label: &dto.LabelPair{Name: new("shard"), Value: &sh.Name},
				sum: sh.Time.Sum, bounds: storeBounds, buckets: sh.Time.Buckets[:],
			}
		}
		gauge(ch, storeLost, since, sh.Name)
		gauge(ch, storeKeys, keys, sh.Name)
	}
}

// unservedSlots is the value of the label shard for hash slots without a server. Such slots have no server name to show.
const unservedSlots = "unserved slots"

var storeBounds = func() (bounds []float64) {
	for _, b := range redisstore.TimeBounds {
		bounds = append(bounds, b.Seconds())
	}
	return bounds
}()
