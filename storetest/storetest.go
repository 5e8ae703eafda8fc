// Package storetest is the contract of every [counter.Store]: run it in the tests
// of a store, and what passes can stand behind a Limiter.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(tb storetest.TB, now func() time.Time) counter.Store {
//			return memstore.New(memstore.Options{Now: now})
//		})
//	}
package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
)

// TB is what opening a store may use of a test.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Open makes an empty store whose clock is the given function. It is called many times.
type Open func(tb TB, now func() time.Time) counter.Store

// Run tests a store against the contract.
func Run(t *testing.T, open Open) {
	runCases(t, open)
	t.Run("Model", func(t *testing.T) { agreesWithModel(t, open, all) })
}

// RunAlone is Run for the only node that borrows of a store. Its random sequences are made to borrow. They have
// buckets that are lent for seconds, and answers may differ from the model's by what package ledger says. Layers, returns, changed
// numbers and clocks that run backwards are left to the cases: after these the store knows less, for a while, than the node.
func RunAlone(t *testing.T, open Open) {
	runCases(t, open)
	t.Run("Model", func(t *testing.T) { agreesWithModel(t, open, borrowing) })
}

func runCases(t *testing.T, open Open) {
	t.Run("Takes", func(t *testing.T) { takes(t, open) })
	t.Run("AllOrNothing", func(t *testing.T) { allOrNothing(t, open) })
	t.Run("OneCounterTwice", func(t *testing.T) { oneCounterTwice(t, open) })
	t.Run("Shadow", func(t *testing.T) { shadow(t, open) })
	t.Run("Peek", func(t *testing.T) { peek(t, open) })
	t.Run("ClockRunsBackwards", func(t *testing.T) { clockRunsBackwards(t, open) })
	t.Run("GiveBack", func(t *testing.T) { giveBack(t, open) })
	t.Run("GiveBackOnce", func(t *testing.T) { giveBackOnce(t, open) })
	t.Run("Recorded", func(t *testing.T) { recordedReturns(t, open) })
	t.Run("Reset", func(t *testing.T) { reset(t, open) })
	t.Run("RaisedLimit", func(t *testing.T) { raisedLimit(t, open) })
	t.Run("HostileSubjects", func(t *testing.T) { hostileSubjects(t, open) })
	t.Run("Slots", func(t *testing.T) { slots(t, open) })
	t.Run("Reservations", func(t *testing.T) { reservations(t, open) })
	t.Run("Repeats", func(t *testing.T) { repeats(t, open) })
	t.Run("Amounts", func(t *testing.T) { fractions(t, open) })
	t.Run("Calendar", func(t *testing.T) { calendarWindows(t, open) })
	t.Run("ConcurrentTakes", func(t *testing.T) { concurrentTakes(t, open) })
	t.Run("ConcurrentLayers", func(t *testing.T) { concurrentLayers(t, open) })
	t.Run("ConcurrentHolds", func(t *testing.T) { concurrentHolds(t, open) })
	t.Run("ConcurrentSlots", func(t *testing.T) { concurrentSlots(t, open) })
}

// Lender is a store that lends: see package lease.
type Lender interface {
	counter.Store
	Lend(ctx context.Context, asks []ledger.Ask, grants []ledger.Grant)
	TakeBack(ctx context.Context, unspent []ledger.Unspent) error
}

// OpenLender makes an empty store whose clock is the given function, as two nodes see it.
type OpenLender func(tb TB, now func() time.Time) [2]Lender

// RunLender tests a store that lends against the contract.
func RunLender(t *testing.T, open OpenLender) {
	Run(t, func(tb TB, now func() time.Time) counter.Store { return open(tb, now)[0] })
	t.Run("Lends", func(t *testing.T) { lendsAsModel(t, open) })
}

// Start is the moment at which the clocks of these tests begin: the middle of a minute, hour and day.
var Start = time.Date(2026, 3, 14, 15, 9, 26, 535_897_000, time.UTC)

// Algorithms are all that a store has to know, but for Concurrency, whose charges need a Hold.
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

// take charges n to each of the policies, all for one subject.
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
		// Callers reuse results: nothing of what was there may shine through.
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

func takes(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			p := Policy(t, "p", hourly(a, 5))
			for i := range int64(5) {
				r := h.take("s", 1, p)[0]
				if !r.Allowed || r.Remaining != 4-i || r.RetryAfter != 0 {
					t.Fatalf("take %d: %+v", i, r)
				}
			}
			for range 3 {
				r := h.take("s", 1, p)[0]
				if r.Allowed || r.Remaining != 0 || r.RetryAfter <= 0 {
					t.Fatalf("refusal: %+v", r)
				}
			}
			r := h.take("s", 1, p)[0]
			h.step(r.RetryAfter - time.Microsecond)
			if h.take("s", 1, p)[0].Allowed {
				t.Fatalf("allowed a microsecond before %v", r.RetryAfter)
			}
			h.step(time.Microsecond)
			if !h.take("s", 1, p)[0].Allowed {
				t.Fatalf("refused after waiting %v", r.RetryAfter)
			}
			if r := h.take("s", 6, p)[0]; r.Allowed || r.RetryAfter != counter.Never {
				t.Fatalf("a cost above the limit: %+v", r)
			}
			if r := h.take("t", 5, p)[0]; !r.Allowed || r.Remaining != 0 {
				t.Fatalf("another subject: %+v", r)
			}
		})
	}
}

func allOrNothing(t *testing.T, open Open) {
	for _, a := range Algorithms {
		for _, b := range Algorithms {
			t.Run(a.String()+"+"+b.String(), func(t *testing.T) {
				h := start(t, open)
				wide, narrow := Policy(t, "wide", hourly(a, 100)), Policy(t, "narrow", hourly(b, 2))
				h.take("s", 2, wide, narrow)
				for _, order := range [][]*counter.Policy{{wide, narrow}, {narrow, wide}} {
					for range 3 {
						rs := h.take("s", 1, order...)
						w, n := rs[slices.Index(order, wide)], rs[slices.Index(order, narrow)]
						if n.Allowed || n.RetryAfter <= 0 {
							t.Fatalf("the narrow one: %+v", n)
						}
						if !w.Allowed || w.Remaining != 98 {
							t.Fatalf("the wide one was charged for a refused request: %+v", w)
						}
					}
				}
			})
		}
	}
}

func shadow(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			real, ghost := Policy(t, "real", hourly(a, 4)), Policy(t, "ghost", hourly(a, 2))
			ghost = ghost.With(func(d *counter.Definition) { d.Shadow = true })
			for i := range 4 {
				rs := h.take("s", 1, real, ghost)
				if !rs[0].Allowed || rs[0].Remaining != int64(3-i) {
					t.Fatalf("take %d: a shadow limit got in the way: %+v", i, rs[0])
				}
				if rs[1].Allowed != (i < 2) || rs[1].Remaining != int64(max(0, 1-i)) {
					t.Fatalf("take %d: the shadow: %+v", i, rs[1])
				}
			}
			h2 := start(t, open)
			h2.take("s", 4, real)
			if rs := h2.take("s", 1, real, ghost); rs[0].Allowed || !rs[1].Allowed || rs[1].Remaining != 2 {
				t.Fatalf("a refused request was counted in shadow: %+v", rs)
			}
		})
	}
}

func peek(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			p, q := Policy(t, "p", hourly(a, 3)), Policy(t, "q", hourly(a, 5))
			look := func(want bool, remaining int64) {
				t.Helper()
				for range 3 {
					one := h.charge(counter.Charge{Counter: named(p, "s"), N: 1, Peek: true})
					two := h.charge(counter.Charge{Counter: named(q, "s"), N: 1, Peek: true}, counter.Charge{Counter: named(p, "s"), N: 1, Peek: true})
					for _, r := range []counter.Result{one[0], two[1]} {
						if r.Allowed != want || r.Remaining != remaining {
							t.Fatalf("peek: %+v, want allowed %v with %d remaining", r, want, remaining)
						}
					}
				}
			}
			look(true, 3)
			h.take("s", 2, p)
			look(true, 1)
			h.take("s", 1, p)
			look(false, 0)
		})
	}
}

// clockRunsBackwards: a client that takes, or only peeks, waits no longer than the algorithm's own
// time, and no step mints anything.
func clockRunsBackwards(t *testing.T, open Open) {
	for _, a := range Algorithms {
		for _, peeks := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/peeks=%v", a, peeks), func(t *testing.T) {
				h := start(t, open)
				p := Policy(t, "p", counter.Limit{Algorithm: a, Count: 10, Window: time.Minute})
				h.take("s", 10, p)
				h.step(-time.Hour)
				ask := counter.Charge{Counter: named(p, "s"), N: 10, Peek: peeks}
				if h.charge(ask)[0].Allowed {
					t.Fatal("the step back minted tokens")
				}
				waited := time.Duration(0)
				for r := h.charge(ask)[0]; !r.Allowed; r = h.charge(ask)[0] {
					if waited += r.RetryAfter; waited > 2*time.Minute {
						t.Fatalf("still refused after %v", waited)
					}
					h.step(r.RetryAfter)
				}
			})
		}
	}
}

func reset(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			p := Policy(t, "p", hourly(a, 3))
			h.take("s", 3, p)
			h.take("t", 3, p)
			if err := h.Reset(context.Background(), []counter.Counter{named(p, "s"), named(p, "nobody")}); err != nil {
				t.Fatal(err)
			}
			if !h.take("s", 3, p)[0].Allowed {
				t.Fatal("the counter wasn't reset")
			}
			if h.take("t", 1, p)[0].Allowed {
				t.Fatal("another counter was reset as well")
			}
		})
	}
}

func raisedLimit(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			low, high := Policy(t, "p", hourly(a, 100)), Policy(t, "p", hourly(a, 500))
			h.take("s", 60, low)
			want := int64(500 - 60 - 1)
			if a == counter.TokenBucket {
				want = 100 - 60 - 1 // it keeps its tokens; the others keep what was used
			}
			if r := h.take("s", 1, high)[0]; !r.Allowed || r.Remaining != want {
				t.Fatalf("after raising 100 to 500: %+v, want %d remaining", r, want)
			}
		})
	}
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
