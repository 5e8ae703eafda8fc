//go:build !race

// This runs without the race detector, which uses memory of its own.

package serve

import (
	"context"
	"encoding/binary"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
)

// TestMemoryOfGarbageBesideCounters checks that when the store is at its cap, garbage takes a fixed amount of memory,
// not as much again as the counters.
func TestMemoryOfGarbageBesideCounters(t *testing.T) {
	const cap = 64 << 20
	store := memstore.New(memstore.Options{MemoryCap: cap})
	policy, err := counter.NewPolicy("p", counter.Limit{Count: 10, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var subject [8]byte
	charge, result := make([]counter.Charge, 1), make([]counter.Result, 1)
	for i := 0; store.Stats().Evicted == 0; {
		for range 100_000 {
			i++
			binary.BigEndian.PutUint64(subject[:], uint64(i))
			charge[0] = counter.Charge{Counter: counter.Counter{Policy: policy, Subject: subject[:]}, N: 1}
			store.Take(t.Context(), charge, result)
		}
	}
	runtime.GC()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- tendGarbage(ctx, store) }()
		time.Sleep(tendEvery)
		synctest.Wait()
		runtime.GC()
		goal := gauge("/gc/heap/goal:bytes") // when garbage is collected next
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		rest := max(0, liveHeap()-store.Bytes())
		t.Logf("%d MiB of counters, %d MiB else, %d MiB with garbage", store.Bytes()>>20, rest>>20, goal>>20)
		if most := store.Bytes() + 2*rest + spareGarbage + spareGarbage/4; goal > most {
			t.Errorf("the heap may reach %d MiB, want at most %d", goal>>20, most>>20)
		}
		if p := debug.SetGCPercent(100); p != 100 {
			t.Errorf("GOGC is left at %d", p)
		}
	})
	runtime.KeepAlive(store)
}

func gauge(name string) int64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

func TestGarbagePercent(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		live, counters int64
		want           int
	}{
		{4 * mib, 0, 900},           // otherwise a small heap would be collected all the time
		{4 * mib, 3 * mib, 825},     //
		{400 * mib, 0, 108},         // a large heap without counters: Go's default, nearly
		{256 * mib, 224 * mib, 25},  // a flood
		{1024 * mib, 1000 * mib, 5}, // a large cap
		{100 * mib, 200 * mib, 32},  // counters that the last collection hasn't seen
		{0, 0, 1000},                // before the first collection
		{64 << 30, 64 << 30, 1},     // never 0, which would collect all the time
		{1000 * mib, 500 * mib, 53}, // half of the heap is counters
	} {
		if got := garbagePercent(c.live, c.counters); got != c.want {
			t.Errorf("%d MiB live, %d MiB of counters: %d%%, want %d%%", c.live/mib, c.counters/mib, got, c.want)
		}
	}
}
