package lease

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/storetest"
)

// TestLostAdmissions: what one exact limiter would have admitted of the same requests, and the nodes didn't,
// is less than a thousandth of them. It prints the table.
func TestLostAdmissions(t *testing.T) {
	limits := []weir.Limit{
		{Count: 10, Window: time.Second},
		{Count: 100, Window: time.Second},
		{Count: 100, Window: time.Minute},
		{Count: 10_000, Window: time.Second, Burst: 1_000},
		{Algorithm: weir.FixedWindow, Count: 1_000, Window: time.Second},
		{Algorithm: weir.SlidingCounter, Count: 1_000, Window: time.Second},
		{Algorithm: weir.LeakyBucket, Count: 1_000, Window: time.Second},
	}
	nodes, loads := []int{1, 4, 20, 50}, []float64{0.5, 0.9, 1.5, 3}
	if slow {
		limits, nodes = limits[1:2], []int{4}
	}
	fmt.Printf("lost admissions, %% of requests, and asks per check, on 1, 4, 20 and 50 nodes\n")
	for _, l := range limits {
		for _, bursty := range []bool{false, true} {
			for _, load := range loads {
				name := fmt.Sprintf("%s %d/%s burst %d, %.1f× %s", l.Algorithm, l.Count, l.Window, l.Burst, load, map[bool]string{false: "Poisson", true: "bursty"}[bursty])
				fmt.Printf("  %-60s", name)
				for _, n := range nodes {
					lost, asked := lose(t, l, n, load, bursty)
					fmt.Printf("  %6.3f (%.2f)", 100*lost, asked)
					if lost >= 0.001 {
						t.Errorf("%s, %d nodes: lost %.3f%%", name, n, 100*lost)
					}
				}
				fmt.Println()
			}
		}
	}
}

// lose runs requests against nodes and against one exact limiter. It returns the part of them that only the
// latter admitted, and how many charges the store was asked for per request.
func lose(t *testing.T, l weir.Limit, nodes int, load float64, bursty bool) (lost, asked float64) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(7, uint64(nodes)))
		w := newWorld(uint64(nodes), nodes)
		w.latency, w.jitter = 250*time.Microsecond, 100*time.Microsecond
		p := storetest.Policy(t, "p", l)
		exact := storetest.NewModel(time.Now)
		rate := p.Terms().Refill * 1e9 * load
		requests := max(30_000, int(8*rate))
		var done sync.WaitGroup
		admitted, left, gap := int64(0), 0, 0.0
		for range requests {
			after := rng.ExpFloat64() / rate
			if bursty { // half a second at four times the rate, and then none
				if left == 0 {
					left = max(1, int(2*rate))
					gap = 1.5
				}
				left--
				after, gap = after/4+gap, 0
			}
			time.Sleep(time.Duration(after * 1e9))
			charges := []weir.Charge{{Counter: weir.Counter{Policy: p, Subject: []byte("k")}, N: 1}}
			results := make([]weir.Result, 1)
			exact.Take(context.Background(), charges, results)
			if results[0].Allowed {
				admitted++
			}
			w.send(&done, w.nodes[rng.IntN(nodes)], []*weir.Policy{p}, arrival{key: "k", cost: 1})
		}
		done.Wait()
		total := uint64(0)
		for _, n := range w.nodes {
			_ = n.leases.Close(context.Background())
			total += n.leases.Asked()
		}
		lost = max(0, float64(admitted-int64(len(w.admitted[counterName{p, "k"}])))) / float64(requests)
		asked = float64(total) / float64(requests)
	})
	return lost, asked
}
