package main

import (
	"runtime"
	"strings"

	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// footprint is what keys cost in memory.
type footprint struct {
	label string
	keys  int
	// heap is bytes of live heap per key, with the key where it is kept.
	heap float64
	// booked is what the store itself says, per counter; 0 where it doesn't.
	booked float64
	// worst is the most that it said while it was growing, and worstHeap the most
	// heap meanwhile, garbage and all.
	worst, worstHeap float64
}

// liveHeap collects the garbage and tells what is left.
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

// weigh fills a contender with keys of which each is a string of its own, as from requests: a
// limiter that keeps the string pays for it.
func weigh(o contender, k workload.Keys, n int) (footprint, error) {
	f := footprint{label: o.name, keys: n}
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
			key = strings.Clone(key) // Weir is given bytes that are overwritten: it can't keep them
		}
		check(key)
		if in.stats != nil && i+1 >= next {
			next = i + 1 + i/100
			f.look(in.stats(), heap()-base)
		}
	}
	f.heap = (float64(liveHeap()) - float64(base)) / float64(n)
	if in.stats != nil {
		st := in.stats()
		f.booked = float64(st.Bytes) / float64(st.Counters)
	}
	runtime.KeepAlive(in)
	return f, nil
}

// firstLook is how many counters a store has when its growth begins to be
// watched, from then on at every hundredth more. Below, the empty store weighs more than its counters.
const firstLook = 100_000

func (f *footprint) look(st memstore.Stats, heap uint64) {
	n := float64(st.Counters)
	f.worst = max(f.worst, float64(st.Bytes)/n)
	f.worstHeap = max(f.worstHeap, float64(heap)/n)
}
