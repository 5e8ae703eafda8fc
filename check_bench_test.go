package weir_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
)

// BenchmarkCheck measures a whole check in this process, by the number of clients. With a million clients, their counters
// aren't in any CPU cache. The key is in the cache, as it is when an edge has just read it from a connection.
func BenchmarkCheck(b *testing.B) {
	for _, clients := range []int{1, 1_000_000, 10_000_000} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			rs := compile(b, weir.Rules{Rules: []weir.Rule{{ID: "api", Limits: []weir.Limit{{Count: 1_000_000_000, Window: time.Minute}}}}})
			l := weir.NewLimiter(memstore.New(memstore.Options{MemoryCap: 4 << 30}), rs, weir.Options{})
			key := []byte("sk_prod_00000000")
			req := &weir.Request{Method: "GET", Path: "/v1/orders"}
			check := func(client uint32) {
				for i := range 8 {
					key[len(key)-1-i] = "0123456789abcdef"[client>>(4*i)&15]
				}
				req.APIKey = string(key) // the one allocation: an edge makes it
				if d, err := l.Check(b.Context(), req); !d.Allowed || err != nil {
					b.Fatal(d, err)
				}
			}
			for i := range clients {
				check(uint32(i))
			}
			asks := make([]uint32, 1<<20)
			zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, uint64(clients-1))
			for i := range asks {
				asks[i] = uint32(zipf.Uint64() * 2654435761 % uint64(clients)) // popular clients aren't neighbors
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				check(asks[i%len(asks)])
			}
		})
	}
}
