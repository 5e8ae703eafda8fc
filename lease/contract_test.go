package lease

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/storetest"
)

// stepped is a Store whose time is that of the contract's tests. A node's clock doesn't run backwards: when the
// store's does, some time has passed on the node, too, after which it believes nothing of before.
type stepped struct {
	*Store
	mu   sync.Mutex // guards what follows
	wall func() time.Time
	seen time.Time
	node int64
}

func (s *stepped) clock() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.wall()
	if d := now.Sub(s.seen); d >= 0 {
		s.node += int64(d)
	} else {
		s.node += int64(time.Minute)
	}
	s.seen = now
	return s.node
}

// settle gives back what leases have left that ended since.
func (s *stepped) settle() {
	s.leases.look()
	s.leases.running.Wait()
}

func (s *stepped) Take(ctx context.Context, charges []weir.Charge, results []weir.Result) {
	s.settle()
	s.Store.Take(ctx, charges, results)
}

// TestContract: a node alone answers as the store itself would. It isn't held against the model, since a clock
// that leaps over the end of a lease leaves no time for what is unspent to go back.
func TestContract(t *testing.T) {
	storetest.RunCases(t, func(tb storetest.TB, now func() time.Time) weir.Store {
		s := &stepped{Store: New(storetest.NewModel(now), Options{Counters: 64}), wall: now, seen: now(), node: 1}
		s.Store.clock = s.clock
		return s
	})
}
