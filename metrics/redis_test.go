package metrics_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/lease"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
	"github.com/weirhq/weir/redisstore"
)

func overRedis(t *testing.T, url string, rules ...weir.Rule) (*bed, *redisstore.Store) {
	t.Helper()
	store, err := redisstore.New(redisstore.Options{URL: url, Timeout: 300 * time.Millisecond}) // long enough for a server on a busy machine
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	leases := lease.New(store, lease.Options{Nodes: store.Nodes})
	b := open(t, leases, weir.Options{Local: store.Share(memstore.New(memstore.Options{}))}, weir.Rules{Rules: rules})
	b.metrics.Watch(metrics.Sources{Limiter: b.limiter, Redis: store, Leases: leases})
	return b, store
}

func TestMetricsOfRedisAndLeases(t *testing.T) {
	addr := redistest.New(t, redistest.Options{}).Addr
	b, store := overRedis(t, "redis://"+addr, weir.Rule{ID: "api", Limits: limit(1_000_000)})
	if err := store.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	const checks = 2000
	for range checks {
		b.check(weir.Request{APIKey: "a"})
	}
	b.want("weir_store_up", map[string]float64{`weir_store_up{shard="` + addr + `"}`: 1})
	b.want("weir_degraded_total", map[string]float64{`weir_degraded_total{mode="allow",rule="api"}`: 0})
	b.want("weir_nodes", map[string]float64{"weir_nodes{}": 1})
	b.want("weir_store_errors_total", map[string]float64{
		`weir_store_errors_total{kind="timeout",shard="` + addr + `"}`:    0,
		`weir_store_errors_total{kind="connection",shard="` + addr + `"}`: 0,
		`weir_store_errors_total{kind="reply",shard="` + addr + `"}`:      0,
		`weir_store_errors_total{kind="slot",shard="` + addr + `"}`:       0,
	})
	all := b.series()
	h := all[`weir_store_duration_seconds{shard="`+addr+`"}`].GetHistogram()
	acts := all[`weir_store_acts_per_call{shard="`+addr+`"}`].GetSummary()
	if h.GetSampleCount() == 0 || h.GetSampleSum() <= 0 || acts.GetSampleCount() != h.GetSampleCount() || acts.GetSampleSum() < 1 {
		t.Errorf("calls: %v, acts: %v", h, acts)
	}
	// The native histogram counts each call once, like the classic one.
	native, in := uint64(0), int64(0)
	for _, delta := range h.GetPositiveDelta() {
		in += delta
		native += uint64(in)
	}
	if span := h.GetPositiveSpan()[0]; native != h.GetSampleCount() || span.GetOffset() != -14 || span.GetLength() != 15 || h.GetSchema() != 0 {
		t.Errorf("%d calls in native buckets: %v", native, h)
	}
	if h.GetBucket()[7].GetUpperBound() != 0.005 {
		t.Errorf("no classic bucket ends at 5 ms: %v", h)
	}
	if last := h.GetBucket()[14]; last.GetUpperBound() != 0.5 || last.GetCumulativeCount() != h.GetSampleCount() {
		t.Errorf("classic buckets: %v", h)
	}
	local := all[`weir_lease_charges_total{where="local"}`].GetCounter().GetValue()
	asked := all[`weir_lease_charges_total{where="store"}`].GetCounter().GetValue()
	if asked < 1 || asked > checks/2 || local < checks/4 {
		t.Errorf("%v charges were decided here and %v in Redis, of %d", local, asked, checks)
	}
	if all["weir_lease_counters{}"].GetGauge().GetValue() != 1 || all["weir_lease_tokens{}"] == nil {
		t.Errorf("leases: %v, %v", all["weir_lease_counters{}"], all["weir_lease_tokens{}"])
	}
}

// TestDecidedWithoutRedis checks that each failure mode is counted by the outcome that it had.
func TestDecidedWithoutRedis(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	server.Kill()
	b, _ := overRedis(t, "redis://"+server.Addr,
		weir.Rule{ID: "open", Match: weir.Match{Endpoint: "/open"}, Limits: limit(5)},
		weir.Rule{ID: "closed", Match: weir.Match{Endpoint: "/closed"}, Limits: limit(5), OnStoreFailure: weir.FailRefuse},
		weir.Rule{ID: "here", Match: weir.Match{Endpoint: "/here"}, Limits: limit(5), OnStoreFailure: weir.FailLocal},
		weir.Rule{ID: "trial", Shadow: true, Limits: limit(5), OnStoreFailure: weir.FailRefuse},
	)
	for range 6 {
		for _, path := range []string{"/open", "/closed", "/here"} {
			if d, err := b.limiter.Check(t.Context(), &weir.Request{APIKey: "a", Path: path}); err == nil {
				t.Errorf("%s was decided without an error, although Redis is gone: %+v", path, d)
			}
		}
	}
	b.want("weir_degraded_total", map[string]float64{
		`weir_degraded_total{mode="allow",rule="open"}`:    6,
		`weir_degraded_total{mode="refuse",rule="closed"}`: 6,
		`weir_degraded_total{mode="local",rule="here"}`:    6,
	})
	b.want("weir_shadow", nil)
	all := b.series()
	for name, want := range map[string]float64{
		`weir_decisions_total{edge="library",outcome="allowed",reason="within",rule="open"}`:        6,
		`weir_decisions_total{edge="library",outcome="refused",reason="unavailable",rule="closed"}`: 6,
		`weir_decisions_total{edge="library",outcome="refused",reason="limited",rule="here"}`:       1,
		`weir_store_up{shard="` + server.Addr + `"}`:                                                0,
	} {
		if m := all[name]; m.GetCounter().GetValue()+m.GetGauge().GetValue() != want {
			t.Errorf("%s: %v, want %v", name, m, want)
		}
	}
}

// TestMetricsOfLostServers checks that the metrics show lost servers, and hash slots without a server, as the store's health
// does.
func TestMetricsOfLostServers(t *testing.T) {
	c := redistest.NewCluster(t, redistest.Options{Config: []string{"cluster-require-full-coverage no", "cluster-replica-no-failover yes"}})
	b, store := overRedis(t, "redis-cluster://"+c.Addrs()[0], weir.Rule{ID: "api", Limits: []weir.Limit{{Count: 100, Window: 24 * time.Hour}}}) // a long window, so that counters outlast the test
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := store.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		b.check(weir.Request{APIKey: fmt.Sprint(i)})
	}
	agree := func(lost, unserved int) func(context.Context) error {
		return func(context.Context) error {
			h, all, down := store.Health(), b.series(), 0
			for i, sh := range h.Shards {
				up, since, keys := 1., 0., 0.
				if !sh.Up {
					down++
					up, since, keys = 0, float64(sh.Since.UnixMilli())/1000, float64(sh.Keys)
					if sh.Keys < 1 {
						return fmt.Errorf("no keys: %+v", sh)
					}
				}
				if i == 3 {
					sh.Name = "unserved slots"
				} else if got := all[`weir_store_up{shard="`+sh.Name+`"}`].GetGauge(); got == nil || got.GetValue() != up {
					return fmt.Errorf("up: %v, want %v", got, up)
				}
				for name, want := range map[string]float64{"lost_timestamp_seconds": since, "keys_affected": keys} {
					if got := all["weir_store_"+name+`{shard="`+sh.Name+`"}`].GetGauge(); got == nil || got.GetValue() != want {
						return fmt.Errorf("%s of %s: %v, want %v", name, sh.Name, got, want)
					}
				}
			}
			if got := all["weir_store_unserved_slots{}"].GetGauge(); down != lost || got.GetValue() != float64(unserved) {
				return fmt.Errorf("%d lost, %v slots without a server: %+v", down, got, h)
			}
			return nil
		}
	}
	until := func(check func(context.Context) error) {
		t.Helper()
		if err := redistest.Until(ctx, check); err != nil {
			t.Fatal(err)
		}
	}
	until(agree(0, 0))
	until(func(context.Context) error { // heartbeats count the keys
		for _, sh := range store.Health().Shards {
			if sh.Keys < 10 {
				return fmt.Errorf("%+v", sh)
			}
		}
		return nil
	})
	if err := c.Nodes[1].Stop(); err != nil {
		t.Fatal(err)
	}
	until(agree(1, 0))
	if err := c.Nodes[1].Cont(); err != nil {
		t.Fatal(err)
	}
	until(agree(0, 0))
	until(c.Healthy)
	slot, err := c.Slot(ctx, "{0}") // the first of the keys' hash tags
	if err != nil {
		t.Fatal(err)
	}
	owner, err := c.Owner(ctx, "{0}")
	if err != nil {
		t.Fatal(err)
	}
	until(func(ctx context.Context) error {
		for _, node := range c.Nodes {
			_, _ = node.Do(ctx, "CLUSTER", "DELSLOTS", fmt.Sprint(slot)) // replicas refuse
		}
		return agree(1, 1)(ctx)
	})
	if _, err := owner.Do(ctx, "CLUSTER", "ADDSLOTS", fmt.Sprint(slot)); err != nil {
		t.Fatal(err)
	}
	until(agree(0, 0))
}
