package lease

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/ledger"
)

// calendar groups a node's leases by the tick in which they end, so that unspent tokens go back to the store in time.
type calendar struct {
	store *Store

	mu      sync.Mutex        // guards the fields below, and calls of running.Go
	days    [4096][]*borrower // the leases that end in each tick, by tick modulo the length
	looked  int64             // the last tick that was handled
	entries int               // how many leases days has
	next    int64             // the first tick that has leases
	timer   *time.Timer
	stopped bool
	running sync.WaitGroup
}

const tick = int64(5 * time.Millisecond) // days covers more than twice the longest lease

// add schedules the return of the tokens that are unspent when the counter's lease ends.
func (c *calendar) add(x *borrower) {
	x.mu.Lock()
	ends := x.leaseEnd
	x.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return
	}
	if c.entries == 0 {
		c.looked = c.store.now() / tick
	}
	at := max(ends/tick, c.looked+1)
	day := &c.days[at%int64(len(c.days))]
	*day = append(*day, x)
	if c.entries++; c.entries == 1 || at < c.next {
		c.wake(at)
	}
}

// wake schedules the next call of look for a tick. The caller holds the lock.
func (c *calendar) wake(at int64) {
	c.next = at
	in := time.Duration(max(0, (at-1)*tick-c.store.now()))
	if c.timer == nil {
		c.timer = time.AfterFunc(in, c.look)
	} else {
		c.timer.Reset(in)
	}
}

// look gives back the unspent tokens of leases that are about to end.
func (c *calendar) look() {
	now := c.store.now()
	var over []*borrower
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		return
	}
	c.looked = max(c.looked, now/tick+1-int64(len(c.days))) // after the machine slept, handle each element of days only once
	for c.looked < now/tick+1 {
		c.looked++
		day := &c.days[c.looked%int64(len(c.days))]
		over = append(over, *day...)
		clear(*day)
		*day = (*day)[:0]
	}
	if c.entries -= len(over); c.entries > 0 {
		at := c.looked + 1
		for len(c.days[at%int64(len(c.days))]) == 0 {
			at++
		}
		c.wake(at)
	}
	c.mu.Unlock()
	var unspent []ledger.Unspent
	for _, x := range over {
		x.mu.Lock()
		if x.leaseEnd/tick <= now/tick+1 { // else the counter has a newer lease
			if back := x.end(now); back.N > 0 {
				unspent = append(unspent, back)
			}
		}
		x.mu.Unlock()
	}
	c.store.returnUnspent(unspent)
}

// stop ends the calendar. The caller then gives back all tokens.
func (c *calendar) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

// returnOne is returnUnspent for a single entry, which may be empty.
func (s *Store) returnOne(unspent ledger.Unspent) {
	if unspent.N > 0 {
		s.returnUnspent([]ledger.Unspent{unspent})
	}
}

// returnUnspent gives tokens back to the store, without blocking the caller. If the store can't be
// reached, the tokens are lost.
func (s *Store) returnUnspent(unspent []ledger.Unspent) {
	if len(unspent) == 0 {
		return
	}
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	give := func() { _ = s.returnSome(context.Background(), unspent) }
	if s.leases.stopped {
		go give()
		return
	}
	s.leases.running.Go(give)
}

// returnSome gives tokens back a few counters at a time, because the store is blocked for other
// calls while it handles one batch.
func (s *Store) returnSome(ctx context.Context, unspent []ledger.Unspent) (err error) {
	for some := range slices.Chunk(unspent, 64) {
		err = errors.Join(err, s.inner.TakeBack(ctx, some))
	}
	return err
}
