package main

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/machine"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// sample is one measurement.
type sample struct {
	checks   int
	wall     time.Duration
	p50, p99 time.Duration
	redis    time.Duration // CPU of the server; 0 where contenders share it
	client   time.Duration // CPU of this process, garbage collection included; likewise
	others   float64       // the part of the cores' time that other processes had meanwhile
	failed   int           // checks that were refused or failed
	fault    error         // the first of them
}

func (s *sample) calm() bool { return s.others <= machine.Disturbed }

// worker is one goroutine's place in the sequence. It outlives a measurement, so
// that what was warmed up isn't what is measured.
type worker struct {
	check check
	seq   workload.Sequence
	pos   int
	// took is how long each check took, in ns: an append costs less than a histogram that isn't in the cache.
	took   []uint32
	failed int
	fault  error
}

func newWorkers(in *instance, seq workload.Sequence, goroutines int) []*worker {
	ws := make([]*worker, goroutines)
	for i := range ws {
		ws[i] = &worker{check: in.worker(), seq: seq, pos: i * len(seq) / len(ws)}
	}
	return ws
}

func (w *worker) reset() { w.took, w.failed, w.fault = w.took[:0], 0, nil }

// run makes checks until it is told to stop, and at least one.
func (w *worker) run(stop *atomic.Bool) {
	last := time.Now()
	for again := true; again; again = !stop.Load() {
		last = w.step(last)
	}
}

// step makes a check that begins now, and tells when it ended.
func (w *worker) step(now time.Time) time.Time {
	if err := w.check(w.seq[w.pos&(len(w.seq)-1)]); err != nil { // the length is a power of two
		w.failed++
		if w.fault == nil {
			w.fault = err
		}
	}
	w.pos++
	end := time.Now()
	w.took = append(w.took, uint32(min(end.Sub(now), math.MaxUint32)))
	return end
}

// measure lets the workers run for a while.
func measure(ctx context.Context, server *redistest.Server, ws []*worker, d time.Duration) (sample, error) {
	start, err := usage(ctx, server)
	if err != nil {
		return sample{}, err
	}
	var wg sync.WaitGroup
	var stop atomic.Bool
	for _, w := range ws {
		w.reset()
		wg.Go(func() { w.run(&stop) })
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	stop.Store(true)
	wg.Wait()
	end, err := usage(ctx, server)
	if err != nil {
		return sample{}, err
	}
	s := sample{
		wall:   end.Wall.Sub(start.Wall),
		redis:  end.Helpers - start.Helpers,
		client: end.Own - start.Own,
		others: start.Others(end),
	}
	s.add(ws)
	return s, nil
}

// usage reads the clocks, with the server as a part of the measurement.
func usage(ctx context.Context, server *redistest.Server) (machine.Usage, error) {
	cpu, err := server.CPU(ctx)
	return machine.Read(cpu), err
}

func (s *sample) add(ws []*worker) {
	times := hdrhistogram.New(1, math.MaxUint32, 3)
	for _, w := range ws {
		for _, ns := range w.took {
			_ = times.RecordValue(int64(ns)) // within the bounds, so there is no error
		}
		s.checks += len(w.took)
		s.failed += w.failed
		if s.fault == nil {
			s.fault = w.fault
		}
	}
	s.p50 = time.Duration(times.ValueAtPercentile(50))
	s.p99 = time.Duration(times.ValueAtPercentile(99))
}

// measureWarm measures after a warm-up; and again while other processes disturb. It returns the calmest.
func measureWarm(ctx context.Context, c *config, server *redistest.Server, ws []*worker) (sample, error) {
	if _, err := measure(ctx, server, ws, c.warmup); err != nil {
		return sample{}, err
	}
	best, err := measure(ctx, server, ws, c.time)
	for again := c.again; err == nil && again > 0 && !best.calm(); again-- {
		var s sample
		if s, err = measure(ctx, server, ws, c.time); s.others < best.others {
			best = s
		}
	}
	return best, err
}

// fill checks the keys from first to last-1 once, those that fail again.
func fill(ctx context.Context, in *instance, first, last, goroutines int) error {
	var wg sync.WaitGroup
	var next atomic.Int64
	next.Store(int64(first))
	errs := make(chan error, goroutines)
	for range goroutines {
		wg.Go(func() {
			check := in.worker()
			for {
				n := next.Add(1) - 1
				if n >= int64(last) || ctx.Err() != nil {
					return
				}
				if err := insist(check, uint32(n)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	// What filling leaves behind isn't for those who are measured next to collect.
	debug.FreeOSMemory()
	close(errs)
	if err := ctx.Err(); err != nil {
		return err
	}
	return <-errs
}

// insist bears with a store that gives up early while all of its clients begin at the same moment.
func insist(check check, n uint32) error {
	const tries = 5
	for i := 1; ; i++ {
		err := check(n)
		if err == nil {
			return nil
		}
		if i == tries {
			return fmt.Errorf("filling: failed %d times: %w", tries, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
