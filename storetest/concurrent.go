package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

func concurrentTakes(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			p := Policy(t, "p", hourly(a, 1000))
			if got := admitted(64, 32, func(int, int) bool { return h.take("s", 1, p)[0].Allowed }); got != 1000 {
				t.Fatalf("%d admitted of 1000", got)
			}
			twice, other := Policy(t, "twice", hourly(a, 10)), Policy(t, "other", hourly(a, 100))
			if got := storm(16, 32, func(int, int) bool { return h.take("s", 1, twice, other, twice)[0].Allowed }); got != 5 {
				t.Fatalf("%d requests of 1 and 1 admitted of 10, want 5", got)
			}
		})
	}
}

// concurrentLayers charges the same counters in opposite orders. It checks that no call deadlocks, and that all limits hold
// exactly.
func concurrentLayers(t *testing.T, open Open) {
	h := start(t, open)
	var layers []*counter.Policy
	for i, a := range Algorithms {
		layers = append(layers, Policy(t, fmt.Sprint("layer", i), hourly(a, int64(700+100*i))))
	}
	backwards := slices.Clone(layers)
	slices.Reverse(backwards)
	got := admitted(64, 32, func(worker, _ int) bool {
		order := layers
		if worker%2 == 1 {
			order = backwards
		}
		return !slices.ContainsFunc(h.take("s", 1, order...), func(r counter.Result) bool { return !r.Allowed })
	})
	if got != 700 {
		t.Fatalf("%d admitted of 700", got)
	}
	for i, p := range layers {
		if r := h.charge(counter.Charge{Counter: named(p, "s"), N: 1, Peek: true})[0]; r.Remaining != int64(100*i) {
			t.Fatalf("layer %d has %d left, want %d: a refused request was charged", i, r.Remaining, 100*i)
		}
	}
}

// concurrentReturns checks that only one of several concurrent calls with the same Once succeeds.
func concurrentReturns(t *testing.T, open Open) {
	h := start(t, open)
	p := Policy(t, "p", hourly(counter.TokenBucket, 10))
	back := []counter.Return{{Counter: named(p, "s"), N: 1, Slot: h.take("s", 10, p)[0].Slot}}
	won := storm(16, 1, func(int, int) bool {
		return h.GiveBack(context.Background(), counter.Once{0: 1}, time.Hour, back) == nil
	})
	if won != 1 {
		t.Fatalf("%d of 16 concurrent uses of one Once succeeded", won)
	}
}

// concurrentHolds mixes requests with and without holds. Each hold is used by two workers.
func concurrentHolds(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			p := Policy(t, "p", hourly(a, 500))
			var seen sync.Map // the IDs of holds that were admitted
			got := admitted(32, 32, func(worker, i int) bool {
				if worker%2 == 0 {
					return h.take("s", 1, p)[0].Allowed
				}
				c := held(p, "s", 1, worker/4<<5|i, time.Minute) // another worker uses this hold, too
				if !h.charge(c)[0].Allowed {
					return false
				}
				_, before := seen.Swap(c.Hold.ID, true)
				return !before
			})
			if got != 500 {
				t.Fatalf("%d admitted of 500", got)
			}
		})
	}
	t.Run("settled", func(t *testing.T) {
		const whole = 1_000_000 // one unit of an amount, in millionths
		h := start(t, open)
		p := Policy(t, "p", counter.Limit{Algorithm: counter.FixedWindow, Count: 1000, Window: 300 * 24 * time.Hour, Decimal: true})
		storm(32, 32, func(worker, i int) bool {
			c := held(p, "s", whole, worker<<5|i, time.Minute)
			r := back(c, h.charge(c)[0])
			r.Used = int64(i) * whole / 16 // from nothing to almost twice the amount
			if worker%2 == 0 {
				r.Hold, r.N, r.Used = nil, whole, 0
			}
			h.giveBack(r)
			return true
		})
		// The 16 odd workers used 31 units each, and the even workers nothing.
		if n := h.left(p, "s"); n != (1000-16*31)*whole {
			t.Fatalf("%d millionths are left, want %d", n, (1000-16*31)*whole)
		}
	})
}

// concurrentSlots checks that no more requests are in flight than the limit says, and that no slot is lost.
func concurrentSlots(t *testing.T, open Open) {
	t.Run("never above", func(t *testing.T) {
		h := start(t, open)
		p, other := Policy(t, "p", inFlight(10)), Policy(t, "other", hourly(counter.FixedWindow, 1_000_000))
		var flying, most atomic.Int64
		got := storm(200, 10, func(worker, i int) bool {
			c := slot(p, "s", 1, worker<<4|i)
			cs := []counter.Charge{c}
			if worker%2 == 1 {
				cs = []counter.Charge{{Counter: named(other, "s"), N: 1}, c}
			}
			rs := h.charge(cs...)
			if !rs[len(rs)-1].Allowed {
				return false
			}
			for n := flying.Add(1); ; {
				if old := most.Load(); n <= old || most.CompareAndSwap(old, n) {
					break
				}
			}
			h.charge(cs[len(cs)-1]) // a renewal
			flying.Add(-1)
			h.giveBack(back(c, rs[len(rs)-1]))
			return true
		})
		if most.Load() > 10 || got == 0 {
			t.Fatalf("%d in flight at once of 10, and %d in all", most.Load(), got)
		}
		if n := h.left(p, "s"); n != 10 {
			t.Fatalf("%d of 10 slots are free when all is quiet", n)
		}
	})
	t.Run("exactly", func(t *testing.T) {
		h := start(t, open)
		p := Policy(t, "p", inFlight(10))
		if got := storm(1000, 1, func(worker, _ int) bool { return h.charge(slot(p, "s", 1, worker))[0].Allowed }); got != 10 {
			t.Fatalf("%d of 1,000 got one of 10 slots", got)
		}
	})
}

// id returns the ID of the i-th hold.
func id(i int) counter.Once { return counter.Once{0: byte(i >> 8), 1: byte(i), 15: 1} }

// inFlight returns a limit on requests in flight. Its slots last 30 seconds.
func inFlight(n int64) counter.Limit {
	return counter.Limit{Algorithm: counter.Concurrency, Count: n, Window: 30 * time.Second}
}

// held returns a charge that leaves a hold behind.
func held(p *counter.Policy, subject string, n int64, i int, lasts time.Duration) counter.Charge {
	return counter.Charge{Counter: named(p, subject), N: n, Returnable: true, Hold: &counter.Hold{ID: id(i), For: lasts, GiveBack: p.GivesBack}}
}

// slot returns a charge that takes slots, or renews them.
func slot(p *counter.Policy, subject string, n int64, i int) counter.Charge {
	return held(p, subject, n, i, p.Limit.Window)
}

// back returns the Return of a charge.
func back(c counter.Charge, r counter.Result) counter.Return {
	return counter.Return{Counter: c.Counter, N: c.N, Slot: r.Slot, Hold: c.Hold}
}

// giveBack gives tokens back, or fails the test.
func (h *harness) giveBack(returns ...counter.Return) {
	h.tb.Helper()
	if err := h.GiveBack(context.Background(), counter.Once{}, 0, returns); err != nil {
		h.tb.Fatalf("give back: %v", err)
	}
}

// left returns how many tokens a counter has left.
func (h *harness) left(p *counter.Policy, subject string) int64 {
	h.tb.Helper()
	return h.charge(counter.Charge{Counter: named(p, subject), N: 1, Peek: true})[0].Remaining
}

// admitted is storm for requests that are admitted until a limit is used up. Tokens that a node gives back may arrive after
// other workers were refused, so at the end one worker goes on until it is refused.
func admitted(workers, each int, f func(worker, i int) bool) int {
	n := storm(workers, each, f)
	for f(0, 0) {
		n++
	}
	return n
}

// storm calls f from many workers at once, and returns how often it was true.
func storm(workers, each int, f func(worker, i int) bool) int {
	var wg sync.WaitGroup
	var total atomic.Int64
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				if f(w, i) {
					total.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return int(total.Load())
}
