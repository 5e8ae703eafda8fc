package metrics_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
)

func benchLimiter(b *testing.B, observe func(*weir.Observation)) *weir.Limiter {
	rs := compile(b, weir.Rules{Rules: []weir.Rule{{ID: "api", Limits: []weir.Limit{{Count: 1_000_000_000, Window: time.Minute}}}}})
	return weir.NewLimiter(memstore.New(memstore.Options{}), rs, weir.Options{Observe: observe})
}

// What metrics add to a whole check in this process. Both kinds take turns, a thousand checks each, and the lower
// tenth of the turns is reported: so both see the same machine, and neither its other work.
func BenchmarkOverhead(b *testing.B) {
	const turn = 1000
	limiters := []*weir.Limiter{benchLimiter(b, nil), benchLimiter(b, metrics.New(prometheus.NewRegistry()).Observe)}
	var took [2][]time.Duration
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
	var ns [2]float64
	for i := range took {
		slices.Sort(took[i])
		ns[i] = float64(took[i][len(took[i])/10]) / turn
	}
	b.ReportMetric(ns[0], "ns/check")
	b.ReportMetric(ns[1], "ns/check-with-metrics")
	b.ReportMetric(ns[1]/ns[0], "ratio")
}

// Checks on all cores, each with clients of its own: what the cores share is what metrics add.
func BenchmarkParallel(b *testing.B) {
	for name, observe := range map[string]func(*weir.Observation){"none": nil, "metrics": metrics.New(prometheus.NewRegistry()).Observe} {
		b.Run("observe="+name, func(b *testing.B) {
			l := benchLimiter(b, observe)
			ctx := b.Context()
			var clients atomic.Int64
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				req := &weir.Request{APIKey: fmt.Sprint("sk_prod_", clients.Add(1)), Method: "GET", Path: "/v1/orders"}
				for pb.Next() {
					_, _ = l.Check(ctx, req)
				}
			})
		})
	}
}
