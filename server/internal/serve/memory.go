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

// By default, Go lets the heap grow to twice its live size before it collects garbage. In a flood,
// most live data is counters: at the cap, garbage would take as much memory again. So garbage is
// collected as if counters weren't there, which is cheap, since they hold no pointers to follow.

// spareGarbage is how much garbage may accumulate in any case. In a small heap, a node under load would otherwise spend
// a fifth of its time on garbage collection, or more with thousands of connections.
const spareGarbage = 32 << 20

// tendEvery is how often GOGC is adjusted. A flood adds about 10 MiB of counters in that time.
const tendEvery = time.Second

// tendGarbage keeps garbage in proportion to the heap without counters, unless GOGC is set.
func tendGarbage(ctx context.Context, counters *memstore.Store) error {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	for inForce := 100; rediscall.Sleep(ctx, tendEvery); {
		// Setting GOGC stops the world for a moment, so ignore small changes.
		if p := garbagePercent(liveHeap(), counters.Bytes()); p > inForce+inForce/8 || p < inForce-inForce/8 {
			debug.SetGCPercent(p)
			inForce = p
		}
	}
	return nil
}

// garbagePercent returns the value for GOGC: how much garbage may accumulate, in percent of the live heap.
func garbagePercent(live, counters int64) int {
	rest := max(0, live-counters)
	return int(min(1000, max(1, 100*(rest+spareGarbage)/max(1, live))))
}

func liveHeap() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}
