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
	many   Batcher // the sender, if it is one
	tally  *tally
	seq    sequence
	luck   *rand.Rand
	pos    int
	left   int // until it goes on elsewhere
	_      [128]byte
}

// stretch is how many requests a worker takes from one place of the sequence before it jumps to another at random. Workers
// that went through the sequence behind one another would meet: the second finds in the cache what the first has fetched.
const stretch = 16

// jump moves to another place of the sequence if this one is used up.
func (w *worker) jump() {
	if w.left == 0 || w.pos == len(w.seq) {
		w.pos, w.left = w.luck.IntN(len(w.seq)), stretch
	}
}

// send sends one request and counts it.
func (w *worker) send(ctx context.Context, c *counts, measured bool) Answer {
	w.jump()
	a := w.sender.Send(ctx, w.seq[w.pos])
	w.pos++
	w.left--
	c.add(&a)
	if measured && (a.Status != 0 || a.Err != nil) {
		w.tally.note(&a)
	}
	return a
}

// sendMany sends n requests, as cheaply as the sender can.
func (w *worker) sendMany(ctx context.Context, n int, c *counts, measured bool) {
	if w.many == nil {
		for range n {
			w.send(ctx, c, measured)
		}
		return
	}
	for n > 0 {
		w.jump()
		part := w.seq[w.pos:min(w.pos+min(n, w.left), len(w.seq))]
		refused := w.many.SendBatch(part)
		c.outcome[Allowed] += int64(len(part)) - refused
		c.outcome[Refused] += refused
		w.pos, w.left, n = w.pos+len(part), w.left-len(part), n-len(part)
	}
}

// batch sends as many requests as there are to each that is timed, and times
// the first. It allocates nothing, and costs little beside a check of 100 ns.
func (w *worker) batch(ctx context.Context, measured bool) Answer {
	var c counts
	begin := w.run.now()
	first := w.send(ctx, &c, measured)
	took := w.run.now() - begin
	w.sendMany(ctx, w.run.sample-1, &c, measured)
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
