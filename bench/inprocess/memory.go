package main

import (
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
)

// footprint says how many bytes of memory a contender needs per key.
type footprint struct {
	contender string
	keys      int
	heap      float64 // bytes of live heap per key, including the key if the limiter keeps it
	reported  float64 // bytes per key that the store itself reports; 0 if it doesn't
	// worst is the highest size that the store reported while it grew. worstHeap is the size of the largest heap during
	// that time, including garbage.
	worst, worstHeap float64
}

// liveHeap returns the size of the heap after a garbage collection.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // frees what a finalizer or a pool kept in the first collection
	return heap()
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// weigh fills a contender with n keys and measures its memory. Each key is a separate string, so a contender that keeps
// a reference to the key keeps its memory alive, too.
func weigh(r *command.Run, o contender, k compare.Keys, n int) footprint {
	f := footprint{contender: o.name, keys: n}
	base := liveHeap()
	in := o.open(r, wideLimit, n)
	check := in.Worker()
	next := firstLook
	for i := range n {
		key := k.At(uint32(i))
		if in.Stats == nil {
			key = strings.Clone(key) // rivals get a copy, which they may keep; Weir gets bytes that the caller overwrites, so it can't keep them
		}
		command.Check(check(key))
		if in.Stats != nil && i+1 >= next {
			next = i + 1 + i/100
			st := in.Stats()
			counters := float64(st.Counters)
			f.worst = max(f.worst, float64(st.Bytes)/counters)
			f.worstHeap = max(f.worstHeap, float64(heap()-base)/counters)
		}
	}
	f.heap = (float64(liveHeap()) - float64(base)) / float64(n)
	if in.Stats != nil {
		st := in.Stats()
		f.reported = float64(st.Bytes) / float64(st.Counters)
	}
	runtime.KeepAlive(in)
	return f
}

// firstLook is how many counters a store has when weigh first reads its size. In a smaller store, the empty table
// outweighs the counters. weigh reads the size again each time the store has grown by a hundredth.
const firstLook = 100_000

func printFootprints(w io.Writer, all []footprint) {
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "\nMemory: bytes of live heap per key, the key's 24 bytes included where the limiter keeps them\n")
	rows := [][]string{{"", "keys", "heap", "reported", "worst reported", "worst heap"}}
	for _, f := range all {
		row := []string{f.contender, report.Amount(f.keys), report.Number(f.heap, 1), "–", "–", "–"}
		if f.reported > 0 {
			row = append(row[:3], report.Number(f.reported, 1), report.Number(f.worst, 1), report.Number(f.worstHeap, 1))
		}
		rows = append(rows, row)
	}
	report.Align(w, rows)
	fmt.Fprintf(w, "  reported: by the store itself. worst: the most per counter while the store grew beyond %s counters; heap with its garbage.\n", report.Amount(firstLook))
}
