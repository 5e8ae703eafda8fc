package load

import (
	"context"
	"math/rand/v2"
	"runtime"
	"time"
)

// lateAfter is how long after it was due a request is sent to count as late.
const lateAfter = time.Millisecond

// worker sends requests, one at a time.
type worker struct {
	_        [128]byte // keeps what one worker writes out of the cache lines of another
	run      *run
	sender   Sender
	many     Batcher // the sender, if it is one
	recorder *recorder
	seq      sequence
	rng      *rand.Rand
	pos      int
	left     int // requests until it jumps
	_        [128]byte
}

// stretch is how many requests a worker takes from one place of the sequence before it jumps to another at random. A worker
// that followed another one would find in the cache what that has fetched.
const stretch = 16

// take returns the clients of the next requests, at most n of them.
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

// sendMany sends n requests, as cheaply as the sender can.
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

// batch sends as many requests as there are to each that is timed, and times the first. In an open loop, that was due at
// the given time. It allocates nothing, and costs little compared with a check of 100 ns.
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

// Pauses of a worker whose requests fail or are decided without the store, so that the target or the store can recover.
const (
	firstPause = time.Millisecond
	maxPause   = time.Second
)

// yieldEvery is after how many batches a worker yields to workers whose answers came from a server.
const yieldEvery = 16

// closed sends the next request when the last one is answered. Requests that begin in the measured time count.
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

// open sends requests when they are due, or as soon afterwards as a worker is free.
func (w *worker) open(ctx context.Context) {
	for {
		due, ok := w.run.pacer.next(ctx, w.run)
		if !ok {
			return
		}
		w.batch(ctx, due, due >= w.run.plan.Warmup)
	}
}
