package redisstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// lane joins the acts that wait at the same moment into one script call. An act
// that finds the lane free is sent at once, by the goroutine that brought it. While
// as many calls are under way as may be, others wait; when one comes
// back, the newest of those who wait sends for all of them: its deadline is the
// last, and whoever's is earlier is told to leave.
type lane struct {
	store *Store
	shard atomic.Pointer[shard]

	mu      sync.Mutex // guards what follows, and the waiters' stages
	flying  int        // calls under way
	queue   []*waiter  // the oldest first
	flights []*flight  // calls under way that somebody waits for beside who sends
	watched bool       // expire is going to look at those who wait
}

// How many calls may be under way in a lane, and how many acts one carries. The
// first keeps Redis busy while a node reads the last reply; the second keeps
// a call short, since Redis does nothing else meanwhile.
const (
	maxFlying = 3
	maxJoined = 64
)

// flight is a call, with those whose acts it carries, the oldest first.
type flight struct{ waiters []*waiter }

type waiter struct {
	act      *act
	deadline time.Time
	stage    stage
	err      error
	held     bool          // by a flight, although it has left
	chosen   *flight       // for which it has to send
	wake     chan struct{} // holds a value when the waiter has to look: it is chosen, or its wait has ended
}

type stage uint8

const (
	queued stage = iota
	chosen       // to send for others
	flying
	done // or told to leave
)

// waiters are used again, unless somebody may still hold them.
var waiters = sync.Pool{New: func() any { return &waiter{wake: make(chan struct{}, 1)} }}

// do has an act decided, and returns nil if it was. The act must not be touched
// again after an error: it may still be under way.
//
// Who can't wait for as long as a call may take leaves the sending to a goroutine:
// neither those it would send for nor the shard's good name must suffer from its hurry.
func (l *lane) do(ctx context.Context, a *act) error {
	if err := ctx.Err(); err != nil {
		return gaveUp(err)
	}
	if sh := l.shard.Load(); sh.open.Load() {
		return sh.unavailable()
	}
	w := waiters.Get().(*waiter)
	w.act, w.deadline, w.stage, w.err = a, time.Now().Add(l.store.timeout), queued, nil
	d, hurried := ctx.Deadline()
	hurried = hurried && d.Before(w.deadline)
	l.mu.Lock()
	if l.flying < maxFlying && len(l.queue) == 0 {
		l.flying++
		w.stage = flying
		l.mu.Unlock()
		f := &flight{[]*waiter{w}}
		if !hurried {
			l.send(f, w)
			return w.release()
		}
		l.store.background(func() { l.send(f, nil) })
	} else {
		l.queue = append(l.queue, w)
		l.watch()
		l.mu.Unlock()
	}
	return l.wait(ctx, w, hurried)
}

// wait is for one who isn't sending: until its act is done, or it has to send for others.
func (l *lane) wait(ctx context.Context, w *waiter, hurried bool) error {
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

// release ends a waiter's use, and tells what became of it.
func (w *waiter) release() error {
	err := w.err
	if !w.held {
		w.act, w.err = nil, nil
		waiters.Put(w)
	}
	return err
}

// leave ends the wait of one who can't wait any longer.
func (l *lane) leave(w *waiter, cause error) error {
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
		l.store.background(func() { l.send(w.chosen, nil) }) // others count on it
	case done:
		return w.err
	}
	return gaveUp(cause)
}

// watch sees to it that nobody waits for too long. One timer does for all who wait: only when
// Redis is slow is there anything for it to do. It is called with the lock held.
func (l *lane) watch() {
	if !l.watched {
		l.watched = true
		time.AfterFunc(l.store.timeout, l.expire)
	}
}

// expire tells those to leave who have waited for as long as they may.
func (l *lane) expire() {
	now, next := time.Now(), time.Time{}
	l.mu.Lock()
	var late []*waiter
	look := func(w *waiter) bool {
		if w.stage != queued && w.stage != flying {
			return false
		}
		if w.deadline.After(now) {
			if next.IsZero() || w.deadline.Before(next) {
				next = w.deadline
			}
			return false
		}
		w.stage, w.err, w.held = done, gaveUp(context.DeadlineExceeded), true
		late = append(late, w)
		return true
	}
	for _, f := range l.flights {
		for _, w := range f.waiters {
			look(w)
		}
	}
	l.queue = slices.DeleteFunc(l.queue, look)
	if l.watched = !next.IsZero(); l.watched {
		time.AfterFunc(next.Sub(now), l.expire)
	}
	l.mu.Unlock()
	for _, w := range late {
		w.wake <- struct{}{}
	}
}

// send has a flight decided, on behalf of one of it or of nobody, and passes the lane on.
func (l *lane) send(f *flight, self *waiter) {
	errs := l.call(f, self)
	l.mu.Lock()
	ended := make([]*waiter, 0, len(f.waiters))
	for i, w := range f.waiters {
		if w.stage == done { // it has left, and its act is nobody's
			continue
		}
		w.stage, w.err = done, errs(i)
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

// call has a flight decided, in one call if it may be, and returns the error of each. Whoever has left by now
// isn't sent for: it was told that it isn't known whether its act runs, so it had better not. For the same reason
// nothing is sent too late, and the shard isn't to blame for that.
func (l *lane) call(f *flight, self *waiter) func(int) error {
	deadline := f.waiters[len(f.waiters)-1].deadline
	if f.waiters[0] != self {
		l.mu.Lock()
		f.waiters = slices.DeleteFunc(f.waiters, func(w *waiter) bool { return w.stage == done })
		l.mu.Unlock()
	}
	var err error
	acts := make([]*act, len(f.waiters))
	for i, w := range f.waiters {
		acts[i] = w.act
	}
	switch {
	case len(acts) == 0:
	case time.Now().After(deadline):
		err = gaveUp(context.DeadlineExceeded)
	default:
		err = l.store.call(l.shard.Load(), acts, deadline)
	}
	if !scattered(err) || len(acts) == 1 {
		return func(int) error { return err }
	}
	errs := make([]error, len(acts))
	var calls sync.WaitGroup
	for i := range acts {
		calls.Go(func() { errs[i] = l.store.call(l.shard.Load(), acts[i:i+1], deadline) })
	}
	calls.Wait()
	return func(i int) error { return errs[i] }
}

// next passes the lane to those who wait, and returns whom to wake beside the given ones. It is called with the lock held.
func (l *lane) next(wake []*waiter) []*waiter {
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
	f := &flight{slices.Clone(l.queue[:min(len(l.queue), maxJoined)])}
	l.queue = slices.Delete(l.queue, 0, len(f.waiters))
	for _, w := range f.waiters {
		w.stage = flying
	}
	newest := f.waiters[len(f.waiters)-1]
	newest.stage, newest.chosen = chosen, f
	l.flights = append(l.flights, f)
	return append(wake, newest)
}
