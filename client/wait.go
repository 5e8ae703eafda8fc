package client

import (
	"context"
	"time"
)

// waiter is a request that waits until it may go.
type waiter struct {
	t      *Transport
	h      *host
	p      *place
	ctx    context.Context
	last   time.Time // the latest time to send it
	waited bool
	policy string // the policy that it has waited for
}

// wait returns once the request is counted and may go, or with an error if it can't go in time.
func (w *waiter) wait(repeat bool) (*call, error) {
	for {
		if err := w.ctx.Err(); err != nil {
			return nil, err
		}
		l, paused, err := w.look()
		if err != nil {
			return nil, err
		}
		if repeat {
			return w.head(nil)
		}
		select {
		case l.turn <- struct{}{}:
		default:
			w.waited = true
			if err := w.queue(l, paused); err != nil {
				return nil, err
			}
		}
		c, err := w.head(l)
		<-l.turn
		if c != nil || err != nil {
			return c, err
		}
	}
}

// queue waits for the request's turn. When a pause begins, it fails if the request can no longer go in time.
func (w *waiter) queue(l *lane, paused chan struct{}) error {
	timer := time.NewTimer(time.Until(w.last))
	defer timer.Stop()
	for {
		select {
		case l.turn <- struct{}{}:
			return nil
		case <-w.ctx.Done():
			return w.ended()
		case <-timer.C:
			return w.ended()
		case <-paused:
			var err error
			if _, paused, err = w.look(); err != nil {
				return err
			}
		}
	}
}

// look returns the request's lane, and a channel that is closed when a pause begins. It fails if the request can't go before
// its time is over.
func (w *waiter) look() (l *lane, paused chan struct{}, err error) {
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	if at, policy := w.h.ready(w.p.lane, time.Now()); at.After(w.last) {
		err = &PausedError{Host: w.h.name, Policy: policy, Until: at}
	}
	return w.p.lane, w.h.paused, err
}

// ended returns the error of a request whose time is up.
func (w *waiter) ended() error {
	if err := w.ctx.Err(); err != nil && err != context.DeadlineExceeded {
		return err
	}
	now := time.Now()
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	at, policy := w.h.ready(w.p.lane, now)
	return &PausedError{Host: w.h.name, Policy: policy, Until: later(at, now)}
}

// head waits until the limits allow the request. It returns nil if the request's place has moved from lane l to another one.
// If l is nil, the lane doesn't matter.
func (w *waiter) head(l *lane) (*call, error) {
	for {
		now := time.Now()
		w.h.mu.Lock()
		if l != nil && w.p.lane != l {
			w.h.mu.Unlock()
			return nil, nil
		}
		at, policy := w.h.ready(w.p.lane, now)
		due := !at.After(now)
		if due && w.h.inFlight < w.t.maxInFlight() {
			c := w.h.send(w.p, now)
			w.h.mu.Unlock()
			return c, nil
		}
		if at.After(w.last) {
			w.h.mu.Unlock()
			return nil, &PausedError{Host: w.h.name, Policy: policy, Until: at}
		}
		if w.h.changed == nil {
			w.h.changed = make(chan struct{})
		}
		changed := w.h.changed
		w.h.mu.Unlock()
		w.waited, w.policy = true, policy
		if due { // it is due, but MaxInFlight requests are under way
			at = w.last
		}
		if err := w.sleep(at, changed); err != nil {
			return nil, err
		}
	}
}

func (w *waiter) sleep(until time.Time, changed chan struct{}) error {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-changed:
		return nil
	case <-timer.C:
		if until.Before(w.last) {
			return nil
		}
	case <-w.ctx.Done():
	}
	return w.ended()
}
