package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/weirhq/weir"
)

// Slot is the place of a request among those that may be in flight. It is renewed until it is released. Make one with [Client.Hold].
type Slot struct {
	client  *Client
	receipt string
	held    *weir.Decision // of the fallback
	ttl     time.Duration
	lost    chan struct{}
	release func() error

	// The client's slots.mu guards these.
	due  time.Time     // when it is to be renewed
	busy chan struct{} // is closed when the renewal that is under way ends; nil if none is
	told bool          // lost is closed
}

// slots are those that a client holds. One goroutine renews them all, as long as there are any.
type slots struct {
	mu   sync.Mutex
	held map[*Slot]struct{}
	runs bool
	wake chan struct{}
}

// Hold renews the slot that a check has taken, three times in the time that it lasts, until it is released:
//
//	slot := checks.Hold(&d)
//	defer slot.Release()
//
// Slots that are due at about the same time are renewed in one call. If this process dies, its slots end by themselves. Of a
// decision that has no slot, it is one that needs nothing.
func (c *Client) Hold(d *Decision) *Slot {
	s := &Slot{client: c, receipt: d.Receipt, held: d.held, ttl: d.SlotTTL, lost: make(chan struct{})}
	s.release = sync.OnceValue(s.end)
	if s.ttl <= 0 || s.receipt == "" && s.held == nil {
		s.release = func() error { return nil }
		return s
	}
	k := &c.slots
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.due = time.Now().Add(s.ttl / 3); k.held == nil {
		k.held, k.wake = map[*Slot]struct{}{}, make(chan struct{}, 1)
	}
	if k.held[s] = struct{}{}; k.runs {
		k.rouse() // it may be due sooner than the others
	} else {
		k.runs = true
		go c.renewSlots()
	}
	return s
}

// Lost is closed when the slot had ended before it could be renewed, and there was no other: more requests may be in flight than
// the limit says. Renewing goes on, so that the request is counted again once there is room. While Weir can't be reached nobody
// knows, and nothing is lost.
func (s *Slot) Lost() <-chan struct{} { return s.lost }

// Release ends the renewals, and frees the slot. It takes a call, also when the request's own context is over. If that fails, the
// slot ends by itself after its time. Only the first call does anything; the others return the same.
func (s *Slot) Release() error { return s.release() }

func (s *Slot) end() error {
	k := &s.client.slots
	k.mu.Lock()
	delete(k.held, s)
	busy := s.busy
	k.rouse() // if it was the last one, there is nothing more to do
	k.mu.Unlock()
	if busy != nil {
		<-busy // a renewal that reached the store behind the release would take the slot again
	}
	if s.held != nil {
		return s.client.fallback.Release(context.Background(), s.held)
	}
	return s.client.Release(context.Background(), s.receipt)
}

// rouse has the goroutine look again. The lock is held.
func (k *slots) rouse() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// renewSlots renews slots until none is held.
func (c *Client) renewSlots() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		batch, wait, busy := c.slots.next(time.Now())
		switch {
		case batch != nil:
			c.renewBatch(batch, busy)
		case wait < 0:
			return
		default:
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-c.slots.wake:
			}
		}
	}
}

// next takes the slots that one call renews: if any is due, also those that soon are. Otherwise it says how long to wait; less than
// 0 means that no slot is held.
func (k *slots) next(now time.Time) (batch []*Slot, wait time.Duration, busy chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.held) == 0 {
		k.runs = false
		return nil, -1, nil
	}
	first := time.Time{}
	for s := range k.held {
		if first.IsZero() || s.due.Before(first) {
			first = s.due
		}
	}
	if wait = first.Sub(now); wait > 0 {
		return nil, wait, nil
	}
	busy = make(chan struct{})
	size := 0
	for s := range k.held {
		if s.due.Sub(now) > s.ttl/6 || len(batch) == maxBatch || len(batch) > 0 && size+len(s.receipt)+3 > maxBatchBody {
			continue
		}
		size += len(s.receipt) + 3
		s.busy = busy
		batch = append(batch, s)
	}
	return batch, 0, busy
}

// renewBatch renews slots in one call, those of the fallback in this process.
func (c *Client) renewBatch(batch []*Slot, busy chan struct{}) {
	began := time.Now()
	errs := make([]error, len(batch))
	var remote []int
	var receipts []string
	for i, s := range batch {
		if s.held != nil {
			errs[i] = c.fallback.Renew(context.Background(), s.held)
			continue
		}
		remote, receipts = append(remote, i), append(receipts, s.receipt)
	}
	if receipts != nil {
		for j, err := range c.renewAll(context.Background(), receipts) {
			errs[remote[j]] = err
		}
	}
	k := &c.slots
	k.mu.Lock()
	defer k.mu.Unlock()
	close(busy)
	for i, s := range batch {
		s.busy = nil
		lost := errors.Is(errs[i], weir.ErrSlotLost)
		over := errors.Is(errs[i], weir.ErrReceiptInvalid) || errors.Is(errs[i], weir.ErrReceiptExpired)
		if s.due = began.Add(s.ttl / 3); errs[i] != nil && !lost {
			s.due = time.Now().Add(s.ttl / 10) // while there is time left
		}
		if (lost || over) && !s.told {
			s.told = true
			close(s.lost)
		}
		if over { // it can never be renewed
			delete(k.held, s)
		}
	}
}
