//go:build !race

// The race detector has memory of its own, so this runs without it.

package gateway

import (
	"runtime"
	"testing"
)

// While 20 MB pass each way, the client, the gateway and the upstream together allocate far less than that.
func TestMemoryOfLargeBodies(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		up, received := startWarehouse(t)
		d := start(t, setup{upstream: up.URL, tls: h2})
		carry(t, d, received) // fills the pools
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		carry(t, d, received)
		runtime.ReadMemStats(&after)
		grown := after.TotalAlloc - before.TotalAlloc
		t.Logf("HTTP/2 %t: %d KB allocated", h2, grown>>10)
		// Buffered even once, either body would be twice as much.
		if grown > big/2 {
			t.Errorf("HTTP/2 %t: %d MB allocated for 40 MB that passed", h2, grown>>20)
		}
	}
}
