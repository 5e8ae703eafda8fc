// Package storetest tests that a [counter.Store] keeps its contract. A store that passes can stand behind a Limiter. Call it
// from the store's own tests:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(tb storetest.TB, now func() time.Time) counter.Store {
//			return memstore.New(memstore.Options{Now: now})
//		})
//	}
package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
)

// TB is the part of testing.TB that Open may use.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Open makes an empty store that uses the given clock. It is called many times.
type Open func(tb TB, now func() time.Time) counter.Store

// Run tests that a store keeps the contract.
func Run(t *testing.T, open Open) {
	runCases(t, open)
	t.Run("Model", func(t *testing.T) { agreesWithModel(t, open, all) })
}

// RunAlone is Run for a store around a lending one, of which this is the only node. Its random sequences make the node borrow,
// also from buckets that lend for seconds, and results may differ from the model's as far as package ledger allows. They have
// no layers, returns, changed numbers or clocks that run backwards, since after those the lending store knows less than the
// node for a while; only the fixed cases test these.
func RunAlone(t *testing.T, open Open) {
	runCases(t, open)
	t.Run("Model", func(t *testing.T) { agreesWithModel(t, open, borrowing) })
}

func runCases(t *testing.T, open Open) {
	runContract(t, open)
	t.Run("HostileSubjects", func(t *testing.T) { hostileSubjects(t, open) })
	t.Run("ConcurrentTakes", func(t *testing.T) { concurrentTakes(t, open) })
	t.Run("ConcurrentLayers", func(t *testing.T) { concurrentLayers(t, open) })
	t.Run("ConcurrentReturns", func(t *testing.T) { concurrentReturns(t, open) })
	t.Run("ConcurrentHolds", func(t *testing.T) { concurrentHolds(t, open) })
	t.Run("ConcurrentSlots", func(t *testing.T) { concurrentSlots(t, open) })
}

// Lender is a store that lends. See package lease.
type Lender interface {
	counter.Store
	Lend(ctx context.Context, asks []ledger.Ask, grants []ledger.Grant)
	TakeBack(ctx context.Context, unspent []ledger.Unspent) error
}

// OpenLender makes an empty store that uses the given clock. It returns the store as two nodes see it.
type OpenLender func(tb TB, now func() time.Time) [2]Lender

// RunLender tests that a lending store keeps the contract.
func RunLender(t *testing.T, open OpenLender) {
	Run(t, func(tb TB, now func() time.Time) counter.Store { return open(tb, now)[0] })
	t.Run("Lends", func(t *testing.T) { lendsAsModel(t, open) })
}

// Start is when the clocks of these tests start, in the middle of a minute, an hour and a day.
var Start = time.Date(2026, 3, 14, 15, 9, 26, 535_897_000, time.UTC)

// Algorithms are all algorithms except Concurrency, whose charges need a Hold.
var Algorithms = []counter.Algorithm{
	counter.TokenBucket, counter.LeakyBucket, counter.LeakyQueue, counter.FixedWindow, counter.SlidingLog, counter.SlidingCounter,
}

// harness is a store under test, with its clock.
type harness struct {
	counter.Store
	tb  TB
	mu  sync.Mutex // guards now
	now time.Time
}

func start(tb TB, open Open) *harness {
	h := &harness{tb: tb, now: Start}
	h.Store = open(tb, h.clock)
	return h
}

func (h *harness) clock() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *harness) step(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
}

// take charges n to each of the policies, for one subject.
func (h *harness) take(subject string, n int64, policies ...*counter.Policy) []counter.Result {
	charges := make([]counter.Charge, len(policies))
	for i, p := range policies {
		charges[i] = counter.Charge{Counter: named(p, subject), N: n}
	}
	return h.charge(charges...)
}

func (h *harness) charge(charges ...counter.Charge) []counter.Result {
	h.tb.Helper()
	results := make([]counter.Result, len(charges))
	for i := range results {
		// Callers reuse results, so none of these values may remain.
		results[i] = counter.Result{Allowed: true, Remaining: -9, RetryAfter: -9, ResetAfter: -9, Delay: -9}
	}
	h.Take(context.Background(), charges, results)
	for i, r := range results {
		if r.Err != nil {
			h.tb.Fatalf("charge %d: %v", i, r.Err)
		}
	}
	return results
}

func named(p *counter.Policy, subject string) counter.Counter {
	return counter.Counter{Policy: p, Subject: []byte(subject)}
}

// Policy prepares a limit, or fails the test.
func Policy(tb TB, name string, l counter.Limit) *counter.Policy {
	tb.Helper()
	p, err := counter.NewPolicy(name, l)
	if err != nil {
		tb.Fatalf("policy %s: %v", name, err)
	}
	return p
}

func hourly(a counter.Algorithm, n int64) counter.Limit {
	return counter.Limit{Algorithm: a, Count: n, Window: time.Hour}
}

func hostileSubjects(t *testing.T, open Open) {
	h := start(t, open)
	p := Policy(t, "p", hourly(counter.TokenBucket, 1))
	subjects := []string{"", "\x00", "\x00\x00", "a:b", "a", "b", "a:b:", "{a}", "{}", "a{", "}", "*", "a\r\nb", "a\nb", "\uff41", "\u00e1", "a\u0301", "A", "a ", " a", "a\xff"}
	for _, s := range subjects {
		if !h.take(s, 1, p)[0].Allowed {
			t.Fatalf("subject %q shares a counter with another", s)
		}
	}
	for _, s := range subjects {
		if h.take(s, 1, p)[0].Allowed {
			t.Fatalf("subject %q wasn't counted", s)
		}
	}
	q := Policy(t, "q", hourly(counter.TokenBucket, 1))
	if !h.take("a", 1, q)[0].Allowed {
		t.Fatal("two policies share a counter")
	}
}
