package serve

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/weirhq/weir/internal/rediscall"
	"github.com/weirhq/weir/memstore"
)

// By default, Go lets the heap grow to twice the size of its live data before it collects garbage. In a flood, most
// live data are counters, so at the memory cap, garbage would take as much memory again. For that reason, garbage is
// collected as if the counters weren't there. That is cheap, because counters contain no pointers that the collector
// has to follow.

// spareGarbage is how much garbage may always accumulate. Without it, a node with a small heap would, under load, spend
// a fifth of its time on garbage collection, or more if it has thousands of connections.
const spareGarbage = 32 << 20

// tendEvery is the time between two adjustments of GOGC. In that time, a flood adds about 10 MiB of counters.
const tendEvery = time.Second

// tendGarbage keeps the amount of garbage in proportion to the heap without counters. If the variable GOGC is set, it
// does nothing.
func tendGarbage(ctx context.Context, counters *memstore.Store) error {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	for inForce := 100; rediscall.Sleep(ctx, tendEvery); {
		// Setting GOGC stops the world for a moment, so ignore small differences.
		if p := garbagePercent(liveHeap(), counters.Bytes()); p > inForce+inForce/8 || p < inForce-inForce/8 {
			debug.SetGCPercent(p)
			inForce = p
		}
	}
	return nil
}

// garbagePercent returns the value for GOGC, which says how much garbage may accumulate, in percent of the live heap.
func garbagePercent(live, counters int64) int {
	rest := max(0, live-counters)
	return int(min(1000, max(1, 100*(rest+spareGarbage)/max(1, live))))
}

func liveHeap() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}
