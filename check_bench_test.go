package weir_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
)

// A whole check in this process, by the number of clients: with a million and more, neither their keys nor their
// counters lie in a cache.
func BenchmarkCheck(b *testing.B) {
	for _, clients := range []int{1, 1_000_000, 10_000_000} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			rs := compile(b, weir.Rules{Rules: []weir.Rule{{ID: "api", Limits: []weir.Limit{{Count: 1_000_000_000, Window: time.Minute}}}}})
			l := weir.NewLimiter(memstore.New(memstore.Options{MemoryCap: 4 << 30}), rs, weir.Options{})
			rng := rand.New(rand.NewPCG(1, 2))
			keys := make([]string, clients)
			for i := range keys {
				keys[i] = fmt.Sprintf("sk_prod_%08x", i)
				if _, err := l.Check(b.Context(), &weir.Request{APIKey: keys[i]}); err != nil {
					b.Fatal(err)
				}
			}
			rng.Shuffle(clients, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] }) // popular keys don't live next to each other
			asks := make([]int32, 1<<20)
			zipf := rand.NewZipf(rng, 1.1, 1, uint64(clients-1))
			for i := range asks {
				asks[i] = int32(zipf.Uint64())
			}
			req := &weir.Request{Method: "GET", Path: "/v1/orders"}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				req.APIKey = keys[asks[i%len(asks)]]
				if d, err := l.Check(b.Context(), req); !d.Allowed || err != nil {
					b.Fatal(d, err)
				}
			}
		})
	}
}
