package main

import (
	"runtime"
	"strings"

	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// footprint is how many bytes of memory each key takes.
type footprint struct {
	Contender string  `json:"contender"`
	Keys      int     `json:"keys"`
	Heap      float64 `json:"heap_bytes_per_key"`                   // live, with the key where the limiter keeps it
	Reported  float64 `json:"reported_bytes_per_counter,omitempty"` // by the store itself; 0 if it doesn't
	// Worst is the most that the store reported while it was growing, and WorstHeap the most heap meanwhile, with garbage.
	Worst     float64 `json:"worst_reported_bytes_per_counter,omitempty"`
	WorstHeap float64 `json:"worst_heap_bytes_per_counter,omitempty"`
}

// weighing is a contender whose memory is measured with so many keys.
type weighing struct {
	contender
	keys int
}

// weighings lists whose memory to measure. The whole check isn't among them: its memory is the store's.
func weighings(c *config) []weighing {
	var all []weighing
	if c.wants(weight(c.Keys)) {
		for _, o := range pick(c, func(o contender) bool { return o.kind == rival || o.name == storeName }) {
			all = append(all, weighing{o, c.Keys})
		}
	}
	if c.large > 0 && c.wants(weight(c.large)) {
		for _, o := range pick(c, func(o contender) bool { return o.name == storeName }) {
			all = append(all, weighing{o, c.large})
		}
	}
	return all
}

// liveHeap is the heap after a garbage collection.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // what a finalizer or a pool held on to in the first
	return heap()
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// weigh fills a contender. Each key is a string of its own, as from a request, so a limiter that keeps the string pays
// for it.
func weigh(o contender, k workload.Keys, n int) (footprint, error) {
	f := footprint{Contender: o.name, Keys: n}
	base := liveHeap()
	in, err := o.open(wideLimit, n)
	if err != nil {
		return f, err
	}
	defer in.close()
	check := in.worker()
	next := firstLook
	for i := range n {
		key := k.At(uint32(i))
		if in.stats == nil {
			key = strings.Clone(key) // Weir can't keep the key: it gets bytes that the caller overwrites
		}
		check(key)
		if in.stats != nil && i+1 >= next {
			next = i + 1 + i/100
			f.look(in.stats(), heap()-base)
		}
	}
	f.Heap = (float64(liveHeap()) - float64(base)) / float64(n)
	if in.stats != nil {
		st := in.stats()
		f.Reported = float64(st.Bytes) / float64(st.Counters)
	}
	runtime.KeepAlive(in)
	return f, nil
}

// firstLook is how many counters a store has when weigh first looks at it; it looks again after each hundredth more. In a
// smaller store, the empty table weighs more than the counters.
const firstLook = 100_000

func (f *footprint) look(st memstore.Stats, heap uint64) {
	n := float64(st.Counters)
	f.Worst = max(f.Worst, float64(st.Bytes)/n)
	f.WorstHeap = max(f.WorstHeap, float64(heap)/n)
}
