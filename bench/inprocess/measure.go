package main

import (
	"context"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/server/bench/internal/machine"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// sample is one measurement.
type sample struct {
	ns      float64 // wall time per check
	cpu     float64 // CPU time per check, all cores and the garbage collector's share; 0 where unknown
	allocs  float64 // per check
	others  float64 // the part of the cores' time that other processes had meanwhile
	refused int     // checks
	checks  int
}

// worker is one goroutine's place in a sequence. It outlives a measurement, so
// that what was warmed up isn't what is measured.
type worker struct {
	check check
	seq   workload.Sequence
	pos   int
}

func newWorkers(in instance, seq workload.Sequence) []*worker {
	ws := make([]*worker, runtime.GOMAXPROCS(0))
	for i := range ws {
		ws[i] = &worker{check: in.worker(), seq: seq, pos: i * len(seq) / len(ws)}
	}
	return ws
}

// batch is how many checks are made between two looks at whether to stop.
const batch = 256

// run makes checks until it is told to stop.
func (w *worker) run(k workload.Keys, stop *atomic.Bool) (checks, refused int) {
	last := len(w.seq) - 1 // a mask: the length is a power of two
	pos := w.pos
	for !stop.Load() {
		for range batch {
			if !w.check(k.At(w.seq[pos&last])) {
				refused++
			}
			pos++
		}
		checks += batch
	}
	w.pos = pos & last
	return checks, refused
}

// measure lets the workers run for a while. The labels tell them apart in a CPU profile.
func measure(ws []*worker, k workload.Keys, d time.Duration, labels ...string) sample {
	var (
		wg              sync.WaitGroup
		stop            atomic.Bool
		checks, refused atomic.Int64
		before, after   runtime.MemStats
	)
	begin := make(chan struct{})
	for _, w := range ws {
		wg.Go(func() {
			pprof.Do(context.Background(), pprof.Labels(labels...), func(context.Context) {
				<-begin
				c, r := w.run(k, &stop)
				checks.Add(int64(c))
				refused.Add(int64(r))
			})
		})
	}
	runtime.ReadMemStats(&before)
	start := machine.Read(0)
	close(begin)
	time.Sleep(d)
	stop.Store(true)
	wg.Wait()
	end := machine.Read(0)
	runtime.ReadMemStats(&after)

	n := float64(checks.Load())
	return sample{
		ns:      float64(end.Wall.Sub(start.Wall)) / n,
		cpu:     float64(end.Own-start.Own) / n,
		allocs:  float64(after.Mallocs-before.Mallocs) / n,
		others:  start.Others(end),
		refused: int(refused.Load()),
		checks:  int(checks.Load()),
	}
}

// measureCalm measures again while other processes disturb, and returns the calmest.
func measureCalm(ws []*worker, k workload.Keys, d time.Duration, again int, labels ...string) sample {
	best := measure(ws, k, d, labels...)
	for ; again > 0 && !best.calm(); again-- {
		if s := measure(ws, k, d, labels...); s.others < best.others {
			best = s
		}
	}
	return best
}

// fill checks every key once, on all cores.
func fill(in instance, k workload.Keys, n int, clone bool) {
	var wg sync.WaitGroup
	procs := runtime.GOMAXPROCS(0)
	for p := range procs {
		wg.Go(func() {
			check := in.worker()
			for i := p * n / procs; i < (p+1)*n/procs; i++ {
				key := k.At(uint32(i))
				if clone {
					key = strings.Clone(key)
				}
				check(key)
			}
		})
	}
	wg.Wait()
}
