package serve

import (
	"context"
	"log/slog"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/metrics"
)

// inMemory returns a node with an in-process store and no ports.
func inMemory(t testing.TB, rules string) *node {
	t.Helper()
	n := &node{began: time.Now(), metrics: metrics.New(prometheus.NewRegistry()), log: slog.New(slog.DiscardHandler)}
	n.top = n.newTop()
	if err := n.openStore(); err != nil {
		t.Fatal(err)
	}
	doc, err := inforce.Parse("rules", []byte(rules), 7)
	if err != nil {
		t.Fatal(err)
	}
	n.rules = inforce.FromFile("rules.yaml", doc, n.limiter, n.log)
	return n
}

func (n *node) checks(t testing.TB, times int, req weir.Request) {
	t.Helper()
	for range times {
		if _, err := n.limiter.Check(t.Context(), &req); err != nil {
			t.Error(err)
		}
	}
}

// Each second has the decisions made in it, and the answer is less than a second old.
func TestSecondsOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := inMemory(t, "rules: [{id: all, limit: 10/day, algorithm: fixed_window}]")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		n.tick()
		go func() { done <- n.followLive(ctx) }()
		time.Sleep(500 * time.Millisecond) // between two ticks
		n.checks(t, 4, weir.Request{APIKey: "a", Edge: "check"})
		time.Sleep(slot)
		n.checks(t, 9, weir.Request{APIKey: "a", Edge: "gateway"})
		time.Sleep(2 * slot)
		n.checks(t, 496, weir.Request{APIKey: "a", Edge: "check"})
		for _, took := range []time.Duration{time.Microsecond, 2 * time.Microsecond, 3 * time.Microsecond, time.Millisecond} { // a check takes no time here
			n.metrics.Observe(&weir.Observation{Request: &weir.Request{Edge: "check"}, Decision: &weir.Decision{Reason: weir.ReasonLimited}, Took: took})
		}
		now := n.now()
		if got := now.Series.Decisions[slots-3:]; got[0] != 4 || got[1] != 9 || got[2] != 0 {
			t.Errorf("the last seconds: %v", got)
		}
		if got := now.Series.Refused[slots-3:]; got[0] != 0 || got[1] != 3 || got[2] != 0 {
			t.Errorf("refused in them: %v", got)
		}
		time.Sleep(slot)
		now = n.now()
		if age := time.Since(now.At); age >= slot {
			t.Errorf("the answer is %s old", age)
		}
		if last := now.Series.Decisions[slots-1]; last != 500 || *now.Series.P50[slots-1] > 4 || *now.Series.P99[slots-1] < 500 || now.Series.P50[slots-2] != nil {
			t.Errorf("%d in the last second, %v and %v", last, now.Series.P50[slots-1], now.Series.P50[slots-2])
		}
		if r := now.Totals; r.Over != 4 || r.Decisions != 513./4 || r.Refused != 503./4 || r.ByEdge["gateway"].Refused != 3./4 || r.ByReason["limited"] != 503./4 || r.ByReason["within"] != 10./4 {
			t.Errorf("%+v", r)
		}
		if l := now.Latency; l.Measured != 4 || *l.P50 != *now.Series.P50[slots-1] || *l.P99 != *now.Series.P99[slots-1] {
			t.Errorf("%+v", l)
		}
		time.Sleep(10 * slot)
		if r := n.now().Totals; r.Over != 10 || r.Decisions != 0 || len(r.ByEdge) != 0 {
			t.Errorf("ten quiet seconds: %+v", r)
		}
		time.Sleep(slots * slot)
		for i, d := range n.now().Series.Decisions {
			if d != 0 {
				t.Errorf("%d decisions %d s ago, when nobody asked", d, slots-i)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// If a busy machine misses some ticks, what was counted is spread over the seconds that have passed, and nothing is
// lost.
func TestMissedSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := inMemory(t, "rules: [{id: all, limit: 10/day}]")
		n.tick()
		n.checks(t, 10, weir.Request{APIKey: "a"})
		time.Sleep(3*slot + slot/2)
		n.tick()
		if got := n.now().Series.Decisions[slots-4:]; got[0] != 0 || got[1] != 3 || got[2] != 3 || got[3] != 4 {
			t.Errorf("10 decisions within three seconds: %v", got)
		}
		n.checks(t, 120_000, weir.Request{APIKey: "b"})
		time.Sleep(10 * slots * slot) // asleep
		n.tick()
		for i, d := range n.now().Series.Decisions {
			if d != 100 {
				t.Errorf("%d decisions %d s ago, want 100", d, slots-i)
			}
		}
	})
}

func TestPercentiles(t *testing.T) {
	bounds := []float64{1e-6, 2e-6, 4e-6}
	for _, c := range []struct {
		buckets  []uint64
		p50, p99 float64
	}{
		{[]uint64{0, 0, 0, 0}, math.NaN(), math.NaN()},
		{[]uint64{100, 0, 0, 0}, 0.5, 0.99},
		{[]uint64{0, 100, 0, 0}, 1.5, 1.99},
		{[]uint64{50, 0, 50, 0}, 1, 3.96},
		{[]uint64{0, 0, 0, 7}, 4, 4},
	} {
		p50, p99 := percentiles(bounds, c.buckets)
		for want, got := range map[float64]*float64{c.p50: p50, c.p99: p99} {
			if got == nil != math.IsNaN(want) || got != nil && math.Abs(*got-want) > 0.011 {
				t.Errorf("%v: %v, want %v", c.buckets, got, want)
			}
		}
	}
}

// A node with an in-process store reports no lease, no shards and no failure modes.
func TestNowOfAnInProcessStore(t *testing.T) {
	n := inMemory(t, "rules: [{id: all, limit: 10/day, on_store_failure: refuse}]")
	n.tick()
	now := n.now()
	if now.Lease != nil || now.Store.URL != Memory || now.Store.Status != "up" || len(now.Store.Shards) != 0 || len(now.FailureModes) != 0 || len(now.Trouble) != 0 {
		t.Errorf("%+v", now)
	}
	if now.RulesVersion != 7 || now.RulesSince == nil || len(now.Series.Decisions) != slots || now.Memory.Cap != 256<<20 {
		t.Errorf("%+v", now)
	}
}
