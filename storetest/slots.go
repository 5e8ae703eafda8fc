package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

// id names the i-th hold.
func id(i int) counter.Once { return counter.Once{0: byte(i >> 8), 1: byte(i), 15: 1} }

// inFlight is a limit on requests in flight, whose slots last half a minute.
func inFlight(n int64) counter.Limit {
	return counter.Limit{Algorithm: counter.Concurrency, Count: n, Window: 30 * time.Second}
}

// held is a charge that leaves a hold behind.
func held(p *counter.Policy, subject string, n int64, i int, lasts time.Duration) counter.Charge {
	return counter.Charge{Counter: named(p, subject), N: n, Returnable: true, Hold: &counter.Hold{ID: id(i), For: lasts, GiveBack: p.GivesBack}}
}

// slot is a charge that takes slots of a limit, or renews them.
func slot(p *counter.Policy, subject string, n int64, i int) counter.Charge {
	return held(p, subject, n, i, p.Limit.Window)
}

// back is the return of a charge.
func back(c counter.Charge, r counter.Result) counter.Return {
	return counter.Return{Counter: c.Counter, N: c.N, Slot: r.Slot, Hold: c.Hold}
}

// giveBack gives back what charges took, or fails the test.
func (h *harness) giveBack(returns ...counter.Return) {
	h.tb.Helper()
	if err := h.GiveBack(context.Background(), counter.Once{}, 0, returns); err != nil {
		h.tb.Fatalf("give back: %v", err)
	}
}

// left is how much a counter has.
func (h *harness) left(p *counter.Policy, subject string) int64 {
	h.tb.Helper()
	return h.charge(counter.Charge{Counter: named(p, subject), N: 1, Peek: true})[0].Remaining
}

func slots(t *testing.T, open Open) {
	t.Run("limit", func(t *testing.T) { slotsLimit(t, open) })
	t.Run("costs", func(t *testing.T) { slotCosts(t, open) })
	t.Run("layers", func(t *testing.T) { slotLayers(t, open) })
	t.Run("shadow", func(t *testing.T) { slotShadow(t, open) })
	t.Run("numbers", func(t *testing.T) { slotNumbers(t, open) })
	t.Run("many", func(t *testing.T) { manySlots(t, open) })
	t.Run("oldest", func(t *testing.T) { oldestSlots(t, open) })
	t.Run("backwards", func(t *testing.T) { slotsBackwards(t, open) })
}

// slotsLimit: slots are there once, are free again when they are released or their time is over, and last longer when they
// are renewed.
func slotsLimit(t *testing.T, open Open) {
	h := start(t, open)
	p := Policy(t, "p", inFlight(3))
	take := func(i int) counter.Result { t.Helper(); return h.charge(slot(p, "s", 1, i))[0] }
	refused := func(i int, retry time.Duration) {
		t.Helper()
		if r := take(i); r.Allowed || r.Remaining != 0 || r.RetryAfter != retry {
			t.Fatalf("a slot of none that are left: %+v, want to wait for %v", r, retry)
		}
	}
	if n := h.left(p, "s"); n != 3 {
		t.Fatalf("%d slots are free of 3", n)
	}
	for i := range 3 {
		if r := take(i); !r.Allowed || r.Remaining != int64(2-i) || r.RetryAfter != 0 || r.ResetAfter != 30*time.Second {
			t.Fatalf("slot %d: %+v", i, r)
		}
		h.step(time.Second)
	}
	for range 2 {
		refused(3, 27*time.Second) // when the first one ends
	}
	if r := h.charge(slot(p, "s", 4, 3))[0]; r.Allowed || r.RetryAfter != counter.Never {
		t.Fatalf("4 slots of 3: %+v", r)
	}
	if r := h.charge(counter.Charge{Counter: named(p, "s"), N: 1, Peek: true})[0]; r.Allowed || r.RetryAfter != 27*time.Second {
		t.Fatalf("a look at slots that are all in use: %+v", r)
	}

	// What isn't there, or is another's, frees nothing.
	h.giveBack(back(slot(p, "s", 1, 9), counter.Result{}), back(slot(p, "t", 1, 1), counter.Result{}), counter.Return{Counter: named(p, "t"), N: 1})
	other := Policy(t, "other", inFlight(3))
	h.giveBack(back(slot(other, "s", 1, 1), counter.Result{}))
	refused(3, 27*time.Second)

	one := back(slot(p, "s", 1, 1), counter.Result{})
	h.giveBack(one)
	if r := take(3); !r.Allowed || r.Remaining != 0 {
		t.Fatalf("after a slot was released: %+v", r)
	}
	for range 2 {
		h.giveBack(one)
		refused(4, 27*time.Second)
	}

	// The first one is renewed, and the one that was taken third ends first.
	for range 2 {
		if r := take(0); !r.Allowed || r.Remaining != 0 || r.ResetAfter != 30*time.Second {
			t.Fatalf("renewed: %+v", r)
		}
	}
	refused(4, 29*time.Second)
	h.step(29*time.Second - time.Microsecond)
	refused(4, time.Microsecond)
	h.step(time.Microsecond)
	if r := take(4); !r.Allowed || r.Remaining != 0 {
		t.Fatalf("after a slot has ended: %+v", r)
	}
	if err := h.Reset(context.Background(), []counter.Counter{named(p, "s")}); err != nil {
		t.Fatal(err)
	}
	if r := take(5); !r.Allowed || r.Remaining != 2 {
		t.Fatalf("after a reset: %+v", r)
	}
	h.step(time.Hour)
	if n := h.left(p, "s"); n != 3 {
		t.Fatalf("%d slots are free of 3 that nobody has renewed", n)
	}
}

// slotCosts: a request may take several slots, all or none, and releases all of them.
func slotCosts(t *testing.T, open Open) {
	h := start(t, open)
	p := Policy(t, "p", inFlight(5))
	if r := h.charge(slot(p, "s", 3, 1))[0]; !r.Allowed || r.Remaining != 2 {
		t.Fatalf("3 of 5: %+v", r)
	}
	if r := h.charge(slot(p, "s", 3, 2))[0]; r.Allowed || r.Remaining != 2 || r.RetryAfter != 30*time.Second {
		t.Fatalf("3 of the 2 that are left: %+v", r)
	}
	if r := h.charge(slot(p, "s", 2, 3))[0]; !r.Allowed || r.Remaining != 0 {
		t.Fatalf("2 of the 2 that are left: %+v", r)
	}
	if r := h.charge(slot(p, "s", 3, 1))[0]; !r.Allowed || r.Remaining != 0 {
		t.Fatalf("3 renewed: %+v", r)
	}
	one := back(slot(p, "s", 1, 1), counter.Result{}) // however many are named
	h.giveBack(one)
	if n := h.left(p, "s"); n != 3 {
		t.Fatalf("%d are free after 3 of 5 were released", n)
	}
	// A counter that is named twice is asked for both.
	if rs := h.charge(slot(p, "s", 1, 4), slot(p, "s", 2, 4)); !rs[0].Allowed || !rs[1].Allowed || rs[0].Remaining != 0 || rs[1].Remaining != 0 {
		t.Fatalf("1 and 2 of the 3 that are left: %+v", rs)
	}
	h.giveBack(back(slot(p, "s", 1, 4), counter.Result{}), back(slot(p, "s", 2, 4), counter.Result{}))
	if n := h.left(p, "s"); n != 3 {
		t.Fatalf("%d are free after 1 and 2 were released", n)
	}
}

// slotLayers: a request that another limit refuses takes no slot, and one that gets none takes nothing else.
func slotLayers(t *testing.T, open Open) {
	for _, a := range Algorithms {
		for _, slotsFirst := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/slots first=%v", a, slotsFirst), func(t *testing.T) {
				h := start(t, open)
				p, other := Policy(t, "slots", inFlight(2)), Policy(t, "other", hourly(a, 3))
				take := func(i int) (slots, tokens counter.Result) {
					cs := []counter.Charge{slot(p, "s", 1, i), {Counter: named(other, "s"), N: 1}}
					if !slotsFirst {
						cs[0], cs[1] = cs[1], cs[0]
					}
					rs := h.charge(cs...)
					if !slotsFirst {
						return rs[1], rs[0]
					}
					return rs[0], rs[1]
				}
				for i := range 2 {
					if s, o := take(i); !s.Allowed || !o.Allowed || s.Remaining != int64(1-i) || o.Remaining != int64(2-i) {
						t.Fatalf("request %d: %+v, %+v", i, s, o)
					}
				}
				for range 3 {
					if s, o := take(2); s.Allowed || s.RetryAfter != 30*time.Second || !o.Allowed || o.Remaining != 1 {
						t.Fatalf("without a slot: %+v, %+v", s, o)
					}
				}
				h.giveBack(back(slot(p, "s", 1, 0), counter.Result{}))
				if s, o := take(2); !s.Allowed || !o.Allowed || o.Remaining != 0 {
					t.Fatalf("with the slot of another: %+v, %+v", s, o)
				}
				h.giveBack(back(slot(p, "s", 1, 1), counter.Result{}))
				for i := range 3 {
					if s, o := take(3 + i); !s.Allowed || s.Remaining != 1 || o.Allowed {
						t.Fatalf("without tokens: %+v, %+v", s, o)
					}
				}
				// A renewal that comes with a request that is refused doesn't make the slot last longer.
				h.step(20 * time.Second)
				if s, o := take(2); !s.Allowed || o.Allowed {
					t.Fatalf("renewed beside a refusal: %+v, %+v", s, o)
				}
				if h.left(other, "s") > 0 {
					t.Fatal("a refused limit has something left")
				}
				h.step(10 * time.Second)
				if n := h.left(p, "s"); n != 2 {
					t.Fatalf("%d of 2 slots are free, and one should have ended", n)
				}
			})
		}
	}
}

// slotShadow: slots in shadow refuse nobody, and those of a refused request aren't taken.
func slotShadow(t *testing.T, open Open) {
	h := start(t, open)
	real, ghost := Policy(t, "real", inFlight(3)), Policy(t, "ghost", inFlight(2))
	ghost = ghost.With(func(d *counter.Definition) { d.Shadow = true })
	for i := range 3 {
		rs := h.charge(slot(ghost, "s", 1, i), slot(real, "s", 1, i))
		if !rs[1].Allowed || rs[1].Remaining != int64(2-i) {
			t.Fatalf("slot %d beside a shadow: %+v", i, rs[1])
		}
		if rs[0].Allowed != (i < 2) || rs[0].Remaining != int64(max(0, 1-i)) {
			t.Fatalf("slot %d in shadow: %+v", i, rs[0])
		}
	}
	h.giveBack(back(slot(ghost, "s", 1, 2), counter.Result{}), back(slot(ghost, "s", 1, 1), counter.Result{}))
	if rs := h.charge(slot(ghost, "s", 1, 3), slot(real, "s", 1, 3)); !rs[0].Allowed || rs[0].Remaining != 1 || rs[1].Allowed {
		t.Fatalf("a refused request took a slot in shadow: %+v", rs)
	}
}

// slotNumbers: other numbers find the same slots in use.
func slotNumbers(t *testing.T, open Open) {
	h := start(t, open)
	high, low := Policy(t, "p", inFlight(5)), Policy(t, "p", inFlight(2))
	for i := range 4 {
		h.charge(slot(high, "s", 1, i))
	}
	if r := h.charge(slot(low, "s", 1, 9))[0]; r.Allowed || r.Remaining != 0 || r.RetryAfter != 30*time.Second {
		t.Fatalf("4 in use of 2: %+v", r)
	}
	if r := h.charge(slot(low, "s", 1, 3))[0]; !r.Allowed || r.Remaining != 0 {
		t.Fatalf("one of 4 is renewed, of 2: %+v", r)
	}
	if r := h.charge(slot(high, "s", 1, 4))[0]; !r.Allowed || r.Remaining != 0 {
		t.Fatalf("the fifth of 5: %+v", r)
	}
}

// manySlots: when many end at once, each act ends some of them, and takes no more time than others.
func manySlots(t *testing.T, open Open) {
	h := start(t, open)
	p := Policy(t, "p", inFlight(300))
	for i := range 300 {
		h.charge(slot(p, "s", 1, i))
	}
	h.step(30 * time.Second)
	for _, want := range []int64{128, 256, 300, 300} {
		if n := h.left(p, "s"); n != want {
			t.Fatalf("%d of 300 slots are free, want %d", n, want)
		}
	}
}

// slotsBackwards: however far a clock is set back, no slot lasts longer than the limit's window from then on.
func slotsBackwards(t *testing.T, open Open) {
	for _, step := range []time.Duration{10 * time.Second, time.Hour} {
		h := start(t, open)
		p := Policy(t, "p", inFlight(2))
		h.charge(slot(p, "s", 1, 0))
		h.charge(slot(p, "s", 1, 1))
		h.step(-step)
		if r := h.charge(slot(p, "s", 1, 2))[0]; r.Allowed || r.RetryAfter != 30*time.Second || r.ResetAfter != 30*time.Second {
			t.Fatalf("no slot is free: %+v", r)
		}
		h.step(20 * time.Second)
		h.charge(slot(p, "s", 1, 1)) // renewed
		h.step(10 * time.Second)
		if r := h.charge(slot(p, "s", 1, 2))[0]; !r.Allowed || r.Remaining != 0 {
			t.Fatalf("a slot that wasn't renewed is free after 30s: %+v", r)
		}
		h.step(10 * time.Second)
		h.charge(slot(p, "s", 1, 2))
		h.step(10 * time.Second)
		if n := h.left(p, "s"); n != 1 {
			t.Fatalf("%d slots are free, want the one that was renewed first", n)
		}
	}
}

// oldestSlots: who can't name the slots that it gives back frees those that end first, and no more than it says.
func oldestSlots(t *testing.T, open Open) {
	h := start(t, open)
	p := Policy(t, "p", inFlight(10))
	free := func(n, want int64) {
		t.Helper()
		h.giveBack(counter.Return{Counter: named(p, "s"), N: n})
		if got := h.left(p, "s"); got != want {
			t.Fatalf("%d slots are free after %d were given back, want %d", got, n, want)
		}
	}
	free(3, 10)
	for i, n := range []int64{1, 4, 2, 3} {
		h.charge(slot(p, "s", n, i))
		h.step(time.Second)
	}
	h.charge(slot(p, "s", 1, 0)) // renewed: the last one to end
	free(0, 0)
	free(3, 3) // of the second, which keeps one
	free(2, 5)
	if r := h.charge(slot(p, "s", 4, 1))[0]; !r.Allowed || r.Remaining != 1 {
		t.Fatalf("the second one is gone, and may be taken again: %+v", r)
	}
	h.giveBack(back(slot(p, "s", 1, 0), counter.Result{}))
	if got := h.left(p, "s"); got != 2 {
		t.Fatalf("%d slots are free once the first one is released, want 2", got)
	}
	free(100, 10)
	h.step(time.Minute)
	free(1, 10)
}

// concurrentSlots: whatever comes at once, no more are in flight than the limit says, and none is lost.
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
			h.charge(cs[len(cs)-1]) // renewed
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
