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
// last, and whoever's is earlier just leaves.
type lane struct {
	store *Store
	shard atomic.Pointer[shard]

	mu     sync.Mutex // guards what follows, and the waiters' stages
	flying int        // calls under way
	queue  []*waiter
}

// How many calls may be under way in a lane, and how many acts one carries. The
// first keeps Redis busy while a node reads the last reply; the second keeps
// a call short, since Redis does nothing else meanwhile.
const (
	maxFlying = 3
	maxJoined = 64
)

type waiter struct {
	act   *act
	stage stage
	err   error
	wake  chan []*waiter // nil when the act is done; otherwise for whom to send
}

type stage uint8

const (
	queued stage = iota
	chosen       // to send for others
	flying
	done
)

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
	deadline := time.Now().Add(l.store.timeout)
	d, hurried := ctx.Deadline()
	hurried = hurried && d.Before(deadline)
	w := &waiter{act: a}
	l.mu.Lock()
	free := l.flying < maxFlying && len(l.queue) == 0
	if free {
		l.flying++
		w.stage = flying
	}
	if free && !hurried {
		l.mu.Unlock()
		l.send([]*waiter{w}, w, deadline)
		return w.err
	}
	w.wake = make(chan []*waiter, 1)
	if !free {
		l.queue = append(l.queue, w)
	}
	l.mu.Unlock()
	if free {
		l.store.background(func() { l.send([]*waiter{w}, nil, deadline) })
	}
	return l.wait(ctx, w, deadline, hurried)
}

// wait is for one who isn't sending: until its act is done, or it has to send for others.
func (l *lane) wait(ctx context.Context, w *waiter, deadline time.Time, hurried bool) error {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		select {
		case batch := <-w.wake:
			if batch != nil && hurried {
				l.mu.Lock()
				w.stage = flying
				l.mu.Unlock()
				l.store.background(func() { l.send(batch, nil, deadline) })
				continue
			}
			if batch != nil {
				l.send(batch, w, deadline)
			}
			return w.err
		case <-timer.C:
			return l.leave(w, context.DeadlineExceeded)
		case <-ctx.Done():
			return l.leave(w, ctx.Err())
		}
	}
}

func gaveUp(cause error) error { return fmt.Errorf("%w: %w", ErrUnavailable, cause) }

// leave ends the wait of one who can't wait any longer.
func (l *lane) leave(w *waiter, cause error) error {
	l.mu.Lock()
	at := w.stage
	if at == queued {
		l.queue = slices.DeleteFunc(l.queue, func(o *waiter) bool { return o == w })
	}
	l.mu.Unlock()
	switch at {
	case chosen: // others count on it
		batch := slices.DeleteFunc(<-w.wake, func(o *waiter) bool { return o == w })
		l.store.background(func() { l.send(batch, nil, time.Now().Add(l.store.timeout)) })
	case done:
		return w.err
	}
	return gaveUp(cause)
}

// send has a batch decided, on behalf of one of it or of nobody, and passes the lane on.
func (l *lane) send(batch []*waiter, self *waiter, deadline time.Time) {
	errs := l.call(batch, deadline)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range batch {
		w.finish(errs(i), self)
	}
	l.next()
}

// call has a batch decided, in one call if it may be, and returns the error of each.
func (l *lane) call(batch []*waiter, deadline time.Time) func(int) error {
	acts := make([]*act, len(batch))
	for i, w := range batch {
		acts[i] = w.act
	}
	var err error
	if len(acts) > 0 {
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

func (w *waiter) finish(err error, self *waiter) {
	w.stage, w.err = done, err
	if w != self {
		w.wake <- nil
	}
}

// next passes the lane to whoever waits. It is called with the lock held.
func (l *lane) next() {
	if sh := l.shard.Load(); sh.open.Load() {
		for _, w := range l.queue {
			w.finish(sh.unavailable(), nil)
		}
		l.queue = nil
	}
	if len(l.queue) == 0 {
		l.flying--
		return
	}
	batch := slices.Clone(l.queue[:min(len(l.queue), maxJoined)])
	l.queue = slices.Delete(l.queue, 0, len(batch))
	for _, w := range batch {
		w.stage = flying
	}
	newest := batch[len(batch)-1]
	newest.stage = chosen
	newest.wake <- batch
}
