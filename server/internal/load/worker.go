package load

import (
	"context"
	"math/rand/v2"
	"runtime"
	"time"
)

// lateAfter is how long after it was due a request must be sent to be called late.
const lateAfter = time.Millisecond

// worker sends requests, one at a time.
type worker struct {
	_      [128]byte // keeps what one worker writes out of the cache lines of another
	run    *run
	sender Sender
	tally  *tally
	seq    sequence
	luck   *rand.Rand
	pos    int
	left   int // until it goes on elsewhere
	_      [128]byte
}

// stretch is how many requests a worker takes from one place of the sequence. Then it goes to another at random:
// workers that went through it one behind the other would meet, since who follows finds answers that are known by then.
const stretch = 16

// send sends one request and counts it.
func (w *worker) send(ctx context.Context, c *counts, measured bool) Answer {
	if w.left == 0 || w.pos == len(w.seq) {
		w.pos, w.left = w.luck.IntN(len(w.seq)), stretch
	}
	a := w.sender.Send(ctx, w.seq[w.pos])
	w.pos++
	w.left--
	c.add(&a)
	if measured && (a.Status != 0 || a.Err != nil) {
		w.tally.note(&a)
	}
	return a
}

// batch sends as many requests as there are to each that is timed, and times
// the first. It allocates nothing, and costs little beside a check of 100 ns.
func (w *worker) batch(ctx context.Context, measured bool) Answer {
	var c counts
	begin := w.run.now()
	first := w.send(ctx, &c, measured)
	took := w.run.now() - begin
	for range w.run.sample - 1 {
		w.send(ctx, &c, measured)
	}
	if measured {
		w.tally.mu.Lock()
		w.tally.counts.merge(&c)
		if first.Outcome.timed() {
			w.tally.latency.record(took)
		}
		w.tally.mu.Unlock()
	}
	return first
}

// Pauses of a worker whose requests fail, or are decided without the store: a target that is gone must not be
// met by a busy loop, and a store that isn't would be kept from coming back by one. A single failure costs next to nothing.
const (
	firstPause = time.Millisecond
	maxPause   = time.Second
)

// fair is after how many batches a worker lets others go on: those whose answers have come from afar would wait for all who never
// have to wait, for as long as these may run.
const fair = 16

// closed sends the next request when the last one is answered. Those count that begin in the measured time.
func (w *worker) closed(ctx context.Context) {
	var pause time.Duration
	for i := 0; ; i++ {
		if i%fair == 0 {
			runtime.Gosched()
		}
		phase := Phase(w.run.phase.Load())
		if phase == Finishing {
			return
		}
		if a := w.batch(ctx, phase == Measuring); a.Outcome != Failed && !a.Degraded {
			pause = 0
			continue
		}
		pause = min(max(2*pause, firstPause), maxPause)
		select {
		case <-time.After(pause):
		case <-w.run.over:
			return
		}
	}
}

// open sends requests when they are due, or as soon after as the one before is answered.
func (w *worker) open(ctx context.Context) {
	r := w.run
	for {
		due, ok := r.pacer.next(ctx, r)
		if !ok {
			return
		}
		measured := due >= r.plan.Warmup
		var c counts
		sent := r.now()
		a := w.send(ctx, &c, measured)
		done := r.now()
		if !measured {
			continue
		}
		if sent-due > lateAfter {
			c.late++
		}
		w.tally.mu.Lock()
		w.tally.counts.merge(&c)
		if a.Outcome.timed() {
			w.tally.latency.record(done - due)
			w.tally.service.record(done - sent)
		}
		w.tally.mu.Unlock()
	}
}
