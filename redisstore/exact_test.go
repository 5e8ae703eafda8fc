package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/storetest"
)

// TestFourNodesAdmitExactly checks that 64 clients spread over four nodes share one limit exactly.
func TestFourNodesAdmitExactly(t *testing.T) {
	t.Parallel()
	oneServerAndACluster(t, func(t *testing.T, url string) {
		var nodes []*Store
		for range 4 {
			nodes = append(nodes, open(t, Options{URL: url}))
		}
		for _, a := range storetest.Algorithms {
			t.Run(a.String(), func(t *testing.T) {
				window := 24 * time.Hour
				if a == counter.FixedWindow {
					window = 366 * 24 * time.Hour // which hardly ends while this runs
				}
				p := policy(t, fmt.Sprint("daily", a), a, 1000, window)
				got := storm(64, 3000, func(i int) bool { return mustTake(t, nodes[i%4], charge1(p, "everyone")) })
				if got != 1000 {
					t.Errorf("%d of 3000 admitted, want 1000", got)
				}
				for i, s := range nodes {
					if n := used(t, s, p, "everyone"); n != 1000 {
						t.Errorf("node %d says that %d are used", i, n)
					}
				}
			})
		}
	})
}
