package serve

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/weirhq/weir/memstore"
)

// By itself, Go lets the heap grow to twice what is live before it collects garbage. Counters are most of
// what is live in a flood, and none of the garbage: at the cap, garbage would take as much memory again. So it is
// collected as if counters weren't there, which costs little, since they hold no pointers to follow.
//
// In a small heap, on the other hand, Go collects garbage so often that a node under load spends a
// fifth of its time on that, and more with thousands of connections, whose stacks are scanned each
// time. So some garbage may always gather.

// spareGarbage is how much garbage may gather in any case, on top of as much as is live apart from
// counters.
const spareGarbage = 32 << 20

// tendEvery is how often the collector is told how much of the heap is counters: a flood makes some
// ten MiB of them meanwhile.
const tendEvery = time.Second

// tendGarbage keeps garbage in proportion to the heap without counters. An operator who sets GOGC
// has decided otherwise.
func tendGarbage(ctx context.Context, counters *memstore.Store) error {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	for inForce := 100; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		// Setting it stops the world for a moment, so small changes can wait.
		if p := garbagePercent(liveHeap(), counters.Bytes()); p > inForce+inForce/8 || p < inForce-inForce/8 {
			debug.SetGCPercent(p)
			inForce = p
		}
	}
}

// garbagePercent is GOGC: how much garbage may gather, in percent of all that is live.
func garbagePercent(live, counters int64) int {
	rest := max(0, live-counters)
	return int(min(1000, max(1, 100*(rest+spareGarbage)/max(1, live))))
}

// liveHeap is what the last collection left.
func liveHeap() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}
