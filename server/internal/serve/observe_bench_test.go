package serve

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
	"github.com/weirhq/weir/server/internal/observe/budget"
)

// recording returns a limiter with the observer that observe picks from a node with all default observers.
func recording(tb testing.TB, observe func(*node) func(*weir.Observation)) *weir.Limiter {
	rs, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "api", Limits: []weir.Limit{{Count: 1_000_000_000, Window: time.Minute}}}}})
	if err != nil {
		tb.Fatal(err)
	}
	n := &node{metrics: metrics.New(prometheus.NewRegistry())}
	n.top = n.newTop()
	store := memstore.New(memstore.Options{})
	n.budget = budget.New(budget.Options{Store: store})
	tb.Cleanup(func() { n.budget.Close(closing) })
	n.limiter = weir.NewLimiter(store, rs, weir.Options{Observe: observe(n), Holds: n.metrics})
	ctx := tb.Context()
	go func() { _ = n.top.Run(ctx) }()
	return n.limiter
}

// BenchmarkRecording measures what observers add to a check in this process. The limiters take turns of 1,000 checks
// each, so that they run under the same conditions, and the benchmark reports the fastest tenth of the turns, to ignore
// other load on the machine.
func BenchmarkRecording(b *testing.B) {
	const turn = 1000
	limiters := []*weir.Limiter{
		recording(b, func(*node) func(*weir.Observation) { return nil }),
		recording(b, func(n *node) func(*weir.Observation) { return n.metrics.Observe }),
		recording(b, func(n *node) func(*weir.Observation) { return n.observe }),
	}
	took := make([][]time.Duration, len(limiters))
	ctx := b.Context()
	req := &weir.Request{APIKey: "sk_prod_00000000", Method: "GET", Path: "/v1/orders"}
	for b.Loop() {
		for i, l := range limiters {
			begun := time.Now()
			for range turn {
				_, _ = l.Check(ctx, req)
			}
			took[i] = append(took[i], time.Since(begun))
		}
	}
	var ns [3]float64
	for i := range took {
		slices.Sort(took[i])
		ns[i] = float64(took[i][len(took[i])/10]) / turn
	}
	b.ReportMetric(ns[0], "ns/check")
	b.ReportMetric(ns[1]/ns[0], "ratio-metrics")
	b.ReportMetric(ns[2]/ns[0], "ratio-all")
}
