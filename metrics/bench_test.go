package metrics_test

import (
	"fmt"
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

// Checks on all cores, each core with clients of its own. So the cores share nothing but the metrics.
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
