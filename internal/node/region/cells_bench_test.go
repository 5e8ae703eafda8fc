package region

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkCells changes stakes in Redis, a different one for each client.
func BenchmarkCells(b *testing.B) {
	for _, clients := range []int{1, 16, 400} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			_, store := openRedis(b)
			cells := RedisCells(store)
			var left, all = atomic.Int64{}, make(chan error, clients)
			left.Store(int64(b.N))
			b.ResetTimer()
			for i := range clients {
				go func() {
					var err error
					for n := byte(0); err == nil && left.Add(-1) >= 0; n++ {
						err = cells.Update(b.Context(), []string{fmt.Sprintf("{%d}", i)}, func([][]byte, int64) []Cell {
							return []Cell{{fmt.Append(make([]byte, 300), n), time.Hour}}
						})
					}
					all <- err
				}()
			}
			for range clients {
				if err := <-all; err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
