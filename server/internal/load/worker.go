package load

import (
	"context"
	"math/rand/v2"
	"runtime"
	"time"
)

// lateAfter is how long after its due time a request must be sent in order to count as late.
const lateAfter = time.Millisecond

// worker sends one request at a time.
type worker struct {
	_        [128]byte // keeps the data of different workers on different cache lines
	run      *run
	sender   Sender
	many     Batcher // the same as sender if that is a Batcher; otherwise nil
	recorder *recorder
	seq      sequence
	rng      *rand.Rand
	pos      int
	left     int // how many requests to take before the next jump in seq
	_        [128]byte
}

// stretch is how many requests a worker takes from one part of the sequence before it jumps to a random other part. If
// a worker followed another one through the sequence, it would find the other worker's data in the cache.
const stretch = 16

// take returns the clients of the next requests, at most n.
func (w *worker) take(n int) []uint32 {
	if w.left == 0 || w.pos == len(w.seq) {
		w.pos, w.left = w.rng.IntN(len(w.seq)), stretch
	}
	clients := w.seq[w.pos:min(w.pos+min(n, w.left), len(w.seq))]
	w.pos, w.left = w.pos+len(clients), w.left-len(clients)
	return clients
}

// send sends one request and counts it.
func (w *worker) send(ctx context.Context, client uint32, c *counts, measured bool) Answer {
	a := w.sender.Send(ctx, client)
	c.add(&a)
	if measured && (a.Status != 0 || a.Err != nil) {
		w.recorder.note(&a)
	}
	return a
}

// sendMany sends n requests in the cheapest way that the sender supports.
func (w *worker) sendMany(ctx context.Context, n int, c *counts, measured bool) {
	for n > 0 {
		clients := w.take(n)
		n -= len(clients)
		if w.many != nil {
			refused := w.many.SendBatch(clients)
			c[Allowed] += int64(len(clients)) - refused
			c[Refused] += refused
			continue
		}
		for _, client := range clients {
			w.send(ctx, client, c, measured)
		}
	}
}

// batch sends Plan.Sample requests, and times the first of them. In an open loop, due is when the first request was
// due. batch makes no allocations, and costs little compared with a check of 100 ns.
func (w *worker) batch(ctx context.Context, due time.Duration, measured bool) Answer {
	r, to := w.run, w.recorder
	var c counts
	sent := r.now()
	first := w.send(ctx, w.take(1)[0], &c, measured)
	done := r.now()
	w.sendMany(ctx, r.sample-1, &c, measured)
	if !measured {
		return first
	}
	open := r.pacer != nil
	switch {
	case !open:
		due = sent
	case sent-due > lateAfter:
		c[late]++
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	to.counts.merge(&c)
	if first.Outcome.timed() {
		to.latency.record(done - due)
		if open {
			to.service.record(done - sent)
		}
	}
	return first
}

// After failures, or decisions without the store, a worker pauses, so that the target or the store can recover. The
// pauses are from firstPause to maxPause.
const (
	firstPause = time.Millisecond
	maxPause   = time.Second
)

// yieldEvery is the number of batches after which a worker yields to workers that have received an answer from a
// server.
const yieldEvery = 16

// closed runs a closed loop: it sends each request when the previous one is answered. It counts the requests that begin
// in the measured time.
func (w *worker) closed(ctx context.Context) {
	var pause time.Duration
	for i := 0; ; i++ {
		if i%yieldEvery == 0 {
			runtime.Gosched()
		}
		phase := Phase(w.run.phase.Load())
		if phase == Finishing {
			return
		}
		if a := w.batch(ctx, 0, phase == Measuring); a.Outcome != Failed && !a.Degraded {
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

// open runs an open loop: it sends requests when they are due or, if all workers are busy then, as soon as a worker is
// free.
func (w *worker) open(ctx context.Context) {
	for {
		due, ok := w.run.pacer.next(ctx, w.run)
		if !ok {
			return
		}
		w.batch(ctx, due, due >= w.run.plan.Warmup)
	}
}
