package lease

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
	"github.com/weirhq/weir/storetest"
)

// stepped is a node alone with a store, in the virtual time of the contract's tests. Leases end when their time comes.
type stepped struct {
	*Store
	wall func() time.Time

	settling sync.Mutex // held while time passes
	mu       sync.Mutex // guards what follows
	at       time.Time  // the store's clock
	node     int64      // the node's
}

func newStepped(wall func() time.Time) *stepped {
	s := &stepped{wall: wall, at: wall(), node: 1}
	s.Store = New(storetest.NewModel(func() time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.at
	}), Options{Counters: 64})
	s.Store.now = func() int64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.node
	}
	return s
}

// settle lets time pass until the test's time. A node's clock doesn't run backwards: when the store's clock does, time passes
// on the node first, until it trusts nothing from before.
func (s *stepped) settle() {
	s.settling.Lock()
	defer s.settling.Unlock()
	to := s.wall()
	if to.Before(s.at) {
		s.pass(time.Minute, 0)
		s.mu.Lock()
		s.at = to
		s.mu.Unlock()
		return
	}
	s.pass(to.Sub(s.at), 1)
}

// pass lets time pass on the node, and on the store only if asked to. Unspent tokens go back when their leases end.
func (s *stepped) pass(d time.Duration, store time.Duration) {
	for first := true; d > 0 || first; first = false {
		step := d
		s.leases.mu.Lock()
		if s.leases.entries > 0 {
			step = min(d, time.Duration(max(0, (s.leases.next-1)*tick-s.node)))
		}
		s.leases.mu.Unlock()
		s.mu.Lock()
		s.node += int64(step)
		s.at = s.at.Add(step * store)
		s.mu.Unlock()
		d -= step
		s.leases.look()
		s.leases.mu.Lock() // nothing may be added while it waits
		s.leases.running.Wait()
		s.leases.mu.Unlock()
	}
}

// Take first lets tokens that are held under other numbers go back, which otherwise takes as long as a message to the store.
func (s *stepped) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	s.settle()
	for i := range charges {
		var back ledger.Unspent
		if charges[i].Peek {
			continue
		}
		s.withCounter(&charges[i].Counter, func(x *borrower) { back = x.adopt(charges[i].Policy, s.now()) })
		if back.N > 0 {
			_ = s.inner.TakeBack(ctx, []ledger.Unspent{back})
		}
	}
	s.Store.Take(ctx, charges, results)
}

func (s *stepped) GiveBack(ctx context.Context, once counter.Once, keep time.Duration, returns []counter.Return) error {
	s.settle()
	return s.Store.GiveBack(ctx, once, keep, returns)
}

func (s *stepped) Reset(ctx context.Context, counters []counter.Counter) error {
	s.settle()
	return s.Store.Reset(ctx, counters)
}

// TestContract checks that a single node gives the same results as the store itself.
func TestContract(t *testing.T) {
	storetest.RunAlone(t, func(tb storetest.TB, now func() time.Time) counter.Store { return newStepped(now) })
}
