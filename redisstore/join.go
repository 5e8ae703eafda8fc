package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/patient"
)

// The pieces of a call have these names:
//
//	charge  what one counter is asked to do (script.go)
//	act     charges that one script call decides together: a take, a return or a reset (script.go)
//	part    the act that a caller's charges need at one joiner (take.go)
//	waiter  a caller that waits for the result of its act
//	flight  a script call under way, with the waiters whose acts it carries

// joiner sends the acts of one tag, or of all tags without a Cluster, and joins acts that wait at the
// same moment into one script call. While fewer than maxFlying calls are under way, the goroutine that
// brings an act sends it at once. Otherwise the act waits. When a call comes back, the newest waiter
// sends for all of them, because its deadline is the last. A waiter whose deadline has passed leaves.
type joiner struct {
	store *Store
	tag   int
	shard atomic.Pointer[shard]

	slot    breaker     // open while no server serves the joiner's hash slot; other slots of the same server aren't affected
	unowned atomic.Bool // according to the servers, no server owns the hash slot

	mu      sync.Mutex // guards what follows, and the waiters' stages
	flying  int        // calls under way
	queue   []*waiter  // the oldest first
	flights []*flight  // calls under way
	ticking bool       // tick is being called, which it is while anyone waits

	ticks atomic.Int64 // the joiner's clock: see tick
}

// maxFlying is how many calls of a joiner may be in flight: enough to keep Redis busy while a node reads the last
// reply. maxJoined limits the work of one call, because Redis does nothing else while the call runs.
const (
	maxFlying = 3
	maxJoined = 64
)

// work estimates how long Redis needs for an act. The unit is a charge of a counter in a hash field.
func (a *act) work() (n int) {
	const long, longWork = 1000, 8 // a log that may be long is searched
	const holdWork = 4             // a hold has keys of its own
	for i := range a.charges {
		c := &a.charges[i]
		switch l := &c.policy.Limit; {
		case l.Algorithm == counter.SlidingLog && l.Count > long:
			n += longWork
		case c.hold != nil || l.Algorithm == counter.Concurrency:
			n += holdWork
		default:
			n++
		}
	}
	return n
}

// flight is a script call under way, with the waiters whose acts it carries, the oldest first. It is also the call's context,
// which ends when the joiner's clock reaches the deadline of the newest waiter.
type flight struct {
	joiner   *joiner
	waiters  []*waiter
	alone    [1]*waiter // the array behind waiters if there is only one
	deadline int64      // on the joiner's clock
	over     atomic.Bool
	done     chan struct{} // closed when the flight is over; made only if the client asks for it; guarded by joiner.mu
}

var _ context.Context = (*flight)(nil)

// Deadline returns when the flight ends, if nothing delays the node.
func (f *flight) Deadline() (time.Time, bool) {
	left := f.deadline - f.joiner.ticks.Load()
	return time.Now().Add(time.Duration(left) * f.joiner.store.timeout / patient.Parts), true
}

// Done makes its channel on the first call, since the client seldom calls it.
func (f *flight) Done() <-chan struct{} {
	f.joiner.mu.Lock()
	defer f.joiner.mu.Unlock()
	if f.done == nil {
		f.done = make(chan struct{})
		if f.over.Load() {
			close(f.done)
		}
	}
	return f.done
}

func (f *flight) Value(any) any { return nil }

// Err returns an error once the flight's deadline has passed.
func (f *flight) Err() error {
	if f.over.Load() {
		return context.DeadlineExceeded
	}
	return nil
}

// waiter is a caller that waits for the result of its act.
type waiter struct {
	act      *act
	deadline int64 // on the joiner's clock
	stage    stage
	err      error
	held     bool          // a flight still refers to it, although the caller has left
	chosen   *flight       // the flight that it has to send
	wake     chan struct{} // holds a value when the waiter was chosen to send, or its wait has ended
}

type stage uint8

const (
	queued stage = iota
	chosen       // it has to send for others
	flying
	done // or its caller has left
)

// waiters is a pool. A waiter that a flight may still refer to isn't put back.
var waiters = sync.Pool{New: func() any { return &waiter{wake: make(chan struct{}, 1)} }}

// do has an act decided, in a span if there are traces. After an error, the act must not be touched
// again, because it may still be under way.
func (l *joiner) do(ctx context.Context, a *act) error {
	sh := l.shard.Load()
	var end func(failure string)
	if l.store.trace != nil {
		end = l.store.trace(ctx, sh.name)
	}
	lost := sh.open.Load()
	err := l.join(ctx, a)
	switch {
	case end == nil:
	case err == nil:
		end("")
	case errors.Is(err, context.Canceled):
		end("canceled")
	case lost:
		end("unavailable")
	default:
		end(failureOf(err))
	}
	return err
}

// join is do without a span.
//
// If the caller can't wait for as long as a call may take, a goroutine sends in its place. A short
// deadline must hurt neither the other waiters of the call nor the shard's health.
func (l *joiner) join(ctx context.Context, a *act) error {
	if err := ctx.Err(); err != nil {
		return gaveUp(err)
	}
	if sh := l.shard.Load(); sh.open.Load() {
		return sh.unavailable()
	}
	if l.slot.open.Load() {
		return l.slot.unavailable()
	}
	w := waiters.Get().(*waiter)
	w.act, w.stage, w.err = a, queued, nil
	d, hurried := ctx.Deadline()
	hurried = hurried && time.Until(d) < l.store.timeout
	l.mu.Lock()
	w.deadline = l.budget()
	if l.flying < maxFlying && len(l.queue) == 0 {
		l.flying++
		if w.stage = chosen; hurried {
			w.stage = flying
		}
		f := &flight{joiner: l, deadline: w.deadline, alone: [1]*waiter{w}}
		f.waiters = f.alone[:]
		l.flights = append(l.flights, f)
		l.mu.Unlock()
		if !hurried {
			l.send(f, w)
			return w.release()
		}
		l.store.background(func() { l.send(f, nil) })
	} else {
		l.queue = append(l.queue, w)
		l.mu.Unlock()
	}
	return l.wait(ctx, w, hurried)
}

// wait blocks until the waiter's act is done. If the waiter is chosen as the sender, it sends for others while it
// waits.
func (l *joiner) wait(ctx context.Context, w *waiter, hurried bool) error {
	for {
		if gone := ctx.Done(); gone == nil {
			<-w.wake
		} else {
			select {
			case <-w.wake:
			case <-gone:
				return l.leave(w, ctx.Err())
			}
		}
		f := w.chosen
		if f == nil {
			return w.release()
		}
		w.chosen = nil
		if !hurried {
			l.send(f, w)
			return w.release()
		}
		l.mu.Lock()
		w.stage = flying
		l.mu.Unlock()
		l.store.background(func() { l.send(f, nil) })
	}
}

func gaveUp(cause error) error { return fmt.Errorf("%w: %w", ErrUnavailable, cause) }

// release ends the use of a waiter, and returns the error of its act.
func (w *waiter) release() error {
	err := w.err
	if !w.held {
		w.act, w.err = nil, nil
		waiters.Put(w)
	}
	return err
}

// leave ends the wait of a waiter whose context is done.
func (l *joiner) leave(w *waiter, cause error) error {
	l.mu.Lock()
	at := w.stage
	w.stage = done
	if at == queued {
		l.queue = slices.DeleteFunc(l.queue, func(o *waiter) bool { return o == w })
	}
	l.mu.Unlock()
	switch at {
	case chosen:
		<-w.wake
		l.store.background(func() { l.send(w.chosen, nil) }) // the other waiters count on it
	case done:
		return w.err
	}
	return gaveUp(cause)
}

// budget returns when, on the joiner's clock, the time of a check that begins now is up. The clock runs
// while there are waiters. The caller holds the lock.
func (l *joiner) budget() int64 {
	if l.ticking {
		return l.ticks.Load() + patient.Parts + 1 // one more, because the next tick comes early
	}
	l.ticking = true
	patient.Every(l.store.timeout/patient.Parts, l.tick)
	return l.ticks.Load() + patient.Parts
}

// tick advances the joiner's clock, which counts the node's own time (see package patient), and ends
// the waits whose budget is spent. It reports whether the clock should keep ticking.
func (l *joiner) tick() bool {
	l.mu.Lock()
	now := l.ticks.Add(1)
	var late []*waiter
	look := func(w *waiter) bool {
		if w.stage != queued && w.stage != flying || w.deadline > now {
			return false
		}
		w.stage, w.err, w.held = done, gaveUp(context.DeadlineExceeded), true
		late = append(late, w)
		return true
	}
	for _, f := range l.flights {
		if f.deadline <= now && !f.over.Swap(true) && f.done != nil {
			close(f.done)
		}
		for _, w := range f.waiters {
			look(w)
		}
	}
	l.queue = slices.DeleteFunc(l.queue, look)
	l.ticking = len(l.flights) > 0 || len(l.queue) > 0
	goOn := l.ticking
	l.mu.Unlock()
	for _, w := range late {
		w.wake <- struct{}{}
	}
	return goOn
}

// send makes a flight's call and starts the next flight. self is the waiter whose goroutine sends, or nil.
func (l *joiner) send(f *flight, self *waiter) {
	errs, err := l.call(f, self)
	l.mu.Lock()
	var ended []*waiter
	for i, w := range f.waiters {
		if w.stage == done { // its caller has left with an error
			continue
		}
		if errs != nil {
			err = errs[i]
		}
		w.stage, w.err = done, err
		if w != self {
			ended = append(ended, w)
		}
	}
	l.flights = slices.DeleteFunc(l.flights, func(o *flight) bool { return o == f })
	ended = l.next(ended)
	l.mu.Unlock()
	for _, w := range ended {
		w.wake <- struct{}{}
	}
}

// call sends the acts of a flight to Redis, in one script call if possible. It returns one error for all acts, or one
// for each. If a waiter has left, its act isn't sent: its caller was told that the act may or may not happen, and it is
// better if it doesn't. For the same reason, nothing is sent after the deadline, and that doesn't count as a failure of
// the shard.
func (l *joiner) call(f *flight, self *waiter) (each []error, err error) {
	if f.waiters[0] != self {
		l.mu.Lock()
		f.waiters = slices.DeleteFunc(f.waiters, func(w *waiter) bool { return w.stage == done })
		l.mu.Unlock()
	}
	var few [1]*act
	acts := few[:0]
	for _, w := range f.waiters {
		acts = append(acts, w.act)
	}
	switch {
	case len(acts) == 0:
	case f.Err() != nil:
		err = gaveUp(f.Err())
	default:
		err = l.store.call(f, l, acts)
	}
	if err == nil || !scattered(err) || len(acts) == 1 {
		return nil, err
	}
	return l.callEach(f), nil
}

// callEach has the acts of a flight decided one by one.
func (l *joiner) callEach(f *flight) []error {
	errs := make([]error, len(f.waiters))
	var calls sync.WaitGroup
	for i, w := range f.waiters {
		calls.Go(func() { errs[i] = l.store.call(f, l, []*act{w.act}) })
	}
	calls.Wait()
	return errs
}

// next makes the next flight from queued acts. It returns the waiters to wake: the given ones, and the one that is chosen to
// send. If the shard is lost, all waiters end with an error instead. The caller holds the lock.
func (l *joiner) next(wake []*waiter) []*waiter {
	if sh := l.shard.Load(); sh.open.Load() {
		for _, w := range l.queue {
			w.stage, w.err = done, sh.unavailable()
		}
		wake = append(wake, l.queue...)
		l.queue = nil
	}
	if len(l.queue) == 0 {
		l.flying--
		return wake
	}
	n := 1
	for work := l.queue[0].act.work(); n < len(l.queue); n++ {
		if work += l.queue[n].act.work(); work > maxJoined {
			break
		}
	}
	newest := l.queue[n-1]
	f := &flight{joiner: l, deadline: newest.deadline, waiters: slices.Clone(l.queue[:n])}
	l.queue = slices.Delete(l.queue, 0, n)
	for _, w := range f.waiters {
		w.stage = flying
	}
	newest.stage, newest.chosen = chosen, f
	l.flights = append(l.flights, f)
	return append(wake, newest)
}
