package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

// amounts are the algorithms that count amounts.
var amounts = []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow}

const whole = 1_000_000 // of an amount

// slowly is a limit of so much an amount, over so long a time that little refills in a day.
func slowly(a counter.Algorithm, n int64) counter.Limit {
	return counter.Limit{Algorithm: a, Count: n, Window: 300 * 24 * time.Hour, Decimal: true}
}

// about fails unless a counter has that much left, in millionths, and what refills in a few days at most.
func (h *harness) about(what string, p *counter.Policy, subject string, want int64) {
	h.tb.Helper()
	if n := h.left(p, subject); n < want || n > want+whole/5 {
		h.tb.Fatalf("%s: %d millionths are left, want %d", what, n, want)
	}
}

// reservations: a debit is settled for what was really used, once.
func reservations(t *testing.T, open Open) {
	for _, a := range amounts {
		t.Run(a.String(), func(t *testing.T) {
			t.Run("settle", func(t *testing.T) { settleReserved(t, open, a) })
			t.Run("no record", func(t *testing.T) { settleUnknown(t, open, a) })
			t.Run("give back", func(t *testing.T) { givenBack(t, open, a) })
			t.Run("backwards", func(t *testing.T) { reservedBackwards(t, open, a) })
			t.Run("overdraft", func(t *testing.T) { overdraft(t, open, a) })
			t.Run("layers", func(t *testing.T) { reserveLayers(t, open, a) })
		})
	}
}

// reserve takes an estimate, and returns what settles it.
func (h *harness) reserve(p *counter.Policy, n int64, i int, lasts time.Duration) (counter.Return, counter.Result) {
	h.tb.Helper()
	c := held(p, "s", n, i, lasts)
	r := h.charge(c)[0]
	return back(c, r), r
}

func settleReserved(t *testing.T, open Open, a counter.Algorithm) {
	h := start(t, open)
	p := Policy(t, "p", slowly(a, 20))
	settle := func(n, used, left int64) counter.Return {
		t.Helper()
		was := h.left(p, "s")
		r, got := h.reserve(p, n, 1, counter.RecordTime)
		if !got.Allowed || got.Remaining != was-n {
			t.Fatalf("%d reserved of %d: %+v", n, was, got)
		}
		h.step(time.Second)
		r.Used = used
		h.giveBack(r)
		h.about("settled", p, "s", left)
		return r
	}
	settle(4*whole, 1_500_000, 18_500_000)     // less
	settle(4*whole, 6*whole, 12_500_000)       // more
	settle(2*whole, 2*whole, 10_500_000)       // as much, or nobody knows
	settle(3*whole, 0, 10_500_000)             // nothing
	r := settle(1_000_001, 1_000_000, 9500000) // all but a millionth

	// Again, it finds no record, and gives nothing back.
	r.Used = 0
	h.giveBack(r)
	h.about("settled twice", p, "s", 9_500_000)

	// With a Once, the second settlement isn't made at all.
	r, _ = h.reserve(p, 2*whole, 2, counter.RecordTime)
	r.Used = 3 * whole
	for i, want := range []error{nil, counter.ErrUsed, counter.ErrUsed} {
		if err := h.GiveBack(context.Background(), counter.Once{7}, time.Hour, []counter.Return{r}); err != want {
			t.Fatalf("settlement %d of a receipt: %v, want %v", i, err, want)
		}
		h.about("settled by a receipt", p, "s", 6_500_000)
	}

	// Two at once are settled each for its own.
	first, _ := h.reserve(p, whole, 3, counter.RecordTime)
	second, _ := h.reserve(p, 2*whole, 4, counter.RecordTime)
	second.Used = whole / 2
	h.giveBack(second)
	h.about("one of two settled", p, "s", 5*whole)
	h.giveBack(first)
	h.about("both settled", p, "s", 6*whole)

	// Its time is over, and it stays taken; then it is as if there never was a record.
	r, _ = h.reserve(p, 2*whole, 5, time.Minute)
	h.step(time.Minute - time.Microsecond)
	h.about("a record that is kept", p, "s", 4*whole)
	h.step(time.Microsecond)
	h.about("a record whose time is over", p, "s", 4*whole)
	h.giveBack(r)
	h.about("settled too late", p, "s", 4*whole)

	// A reset forgets records.
	r, _ = h.reserve(p, 2*whole, 6, time.Minute)
	if err := h.Reset(context.Background(), []counter.Counter{r.Counter}); err != nil {
		t.Fatal(err)
	}
	h.charge(counter.Charge{Counter: r.Counter, N: 5 * whole})
	h.giveBack(r)
	h.about("settled after a reset", p, "s", 15*whole)
}

func settleUnknown(t *testing.T, open Open, a counter.Algorithm) {
	h := start(t, open)
	p := Policy(t, "p", slowly(a, 20))
	c := held(p, "s", 4*whole, 1, counter.RecordTime)
	unknown := counter.Return{Counter: c.Counter, N: 4 * whole, Slot: h.now.UnixMicro(), Hold: c.Hold}
	settle := func(used, left int64) {
		t.Helper()
		unknown.Used = used
		h.giveBack(unknown)
		h.about("without a record", p, "s", left)
	}
	settle(5*whole, 19*whole) // of a counter that was never touched
	settle(0, 19*whole)
	settle(4*whole, 19*whole)
	settle(4*whole+1, 19*whole-1)

	// Nor does another's record count: of another client, or under another name.
	h.charge(held(p, "t", 4*whole, 1, counter.RecordTime), held(p, "s", 4*whole, 2, counter.RecordTime))
	settle(0, 15*whole-1)
	h.about("another's", p, "t", 16*whole)
}

// givenBack: what isn't settled in time goes back, by the store's clock and without any node. What is settled later is booked whole.
func givenBack(t *testing.T, open Open, a counter.Algorithm) {
	h := start(t, open)
	p := Policy(t, "p", slowly(a, 10))
	p = p.With(func(d *counter.Definition) { d.GivesBack = true })
	r, _ := h.reserve(p, 9*whole, 1, time.Minute)
	h.step(time.Minute - time.Microsecond)
	h.about("before its time is over", p, "s", whole)
	h.step(time.Microsecond)
	// Whatever comes first finds it given back: here a charge without a hold.
	if got := h.charge(counter.Charge{Counter: named(p, "s"), N: 5 * whole})[0]; !got.Allowed {
		t.Fatalf("what wasn't settled didn't go back: %+v", got)
	}
	h.about("after a minute", p, "s", 5*whole)
	h.step(time.Hour)
	h.about("after an hour", p, "s", 5*whole)
	r.Used = 2 * whole
	h.giveBack(r)
	h.about("settled late", p, "s", 3*whole)
	h.giveBack(r)
	h.about("settled late, twice", p, "s", 3*whole)

	// Settled in time, it doesn't go back a second time.
	r, _ = h.reserve(p, 2*whole, 2, time.Minute)
	r.Used = whole
	h.giveBack(r)
	h.step(2 * time.Minute)
	h.about("settled in time", p, "s", 2*whole)

	// A return comes first, and then a refusal.
	first, _ := h.reserve(p, whole, 3, time.Minute)
	h.reserve(p, whole/2, 4, 2*time.Minute)
	h.step(time.Minute)
	first.Used = whole / 2
	h.giveBack(first)
	h.about("settled as its time was over", p, "s", whole)
	h.step(time.Minute)
	if got := h.charge(counter.Charge{Counter: named(p, "s"), N: 9 * whole})[0]; got.Allowed || got.Remaining < 1_500_000 || got.Remaining > 1_700_000 {
		t.Fatalf("9 of 1.5: %+v", got)
	}

	// Its record is kept for a day, and no longer.
	r, _ = h.reserve(p, whole, 5, time.Minute)
	h.step(time.Minute + counter.RecordTime - time.Microsecond)
	h.about("a day later", p, "s", 1_500_000)
	r.Used = whole / 2
	h.giveBack(r)
	h.about("settled within a day", p, "s", whole)
	r, _ = h.reserve(p, whole/2, 6, time.Minute)
	h.step(time.Minute)
	h.about("given back", p, "s", whole)
	h.step(counter.RecordTime)
	r.Used = whole
	h.giveBack(r)
	h.about("settled after more than a day", p, "s", whole/2) // for the excess alone

	// Once it went back, a check of its name is charged anew.
	h = start(t, open)
	for range 3 {
		for range 2 {
			h.reserve(p, 6*whole, 1, time.Minute)
			h.about("reserved under one name", p, "s", 4*whole)
		}
		h.step(time.Minute)
	}
}

// reservedBackwards: after a clock has stepped back, a reservation goes back within its own length, whatever longer records lie
// beside it, and a check that was repeated is charged again.
func reservedBackwards(t *testing.T, open Open, a counter.Algorithm) {
	h := start(t, open)
	p := Policy(t, "p", slowly(a, 10))
	p = p.With(func(d *counter.Definition) { d.GivesBack = true })
	reserve := func(n int64, i int, lasts time.Duration, back bool) counter.Result {
		t.Helper()
		c := held(p, "s", n, i, lasts)
		c.Hold.GiveBack = back
		r := h.charge(c)[0]
		if !r.Allowed {
			t.Fatalf("%+v", r)
		}
		return r
	}
	reserve(whole, 1, time.Second, true)
	h.step(time.Second)
	h.about("one went back, and its record stays for a day", p, "s", 10*whole)
	reserve(4*whole, 2, 5*time.Second, true)
	reserve(whole, 3, time.Minute, false)
	h.step(time.Second)
	h.step(-time.Hour)
	h.about("the clock has stepped back", p, "s", 5*whole)
	h.step(5*time.Second - time.Microsecond)
	h.about("a moment before its end", p, "s", 5*whole)
	h.step(time.Microsecond)
	h.about("at its end", p, "s", 9*whole)
	h.step(54 * time.Second)
	if r := reserve(whole, 3, time.Minute, false); !r.Again {
		t.Fatalf("repeated within a minute: %+v", r)
	}
	h.step(2 * time.Second)
	if r := reserve(whole, 3, time.Minute, false); r.Again {
		t.Fatalf("repeated after a minute: %+v", r)
	}
	h.about("charged again", p, "s", 8*whole)
}

// overdraft: what was used beyond the estimate is taken below zero, and nothing fits until that has refilled.
func overdraft(t *testing.T, open Open, a counter.Algorithm) {
	h := start(t, open)
	p := Policy(t, "p", counter.Limit{Algorithm: a, Count: 10, Window: time.Hour, Decimal: true})
	r, _ := h.reserve(p, 4*whole, 1, counter.RecordTime)
	r.Used = 15 * whole
	h.giveBack(r)
	got := h.charge(counter.Charge{Counter: r.Counter, N: 1})[0]
	if got.Allowed || got.Remaining != 0 || got.RetryAfter <= 0 {
		t.Fatalf("a millionth of nothing: %+v", got)
	}
	if a != counter.FixedWindow && got.RetryAfter != 30*time.Minute+360*time.Microsecond {
		t.Fatalf("5 below zero: %+v", got)
	}
	h.step(got.RetryAfter - time.Microsecond)
	if h.charge(counter.Charge{Counter: r.Counter, N: 1})[0].Allowed {
		t.Fatalf("allowed a microsecond before %v", got.RetryAfter)
	}
	h.step(time.Microsecond)
	if !h.charge(counter.Charge{Counter: r.Counter, N: 1})[0].Allowed {
		t.Fatalf("refused after %v", got.RetryAfter)
	}
}

// reserveLayers: a request that another limit refuses reserves nothing, and leaves no record.
func reserveLayers(t *testing.T, open Open, a counter.Algorithm) {
	h := start(t, open)
	p, narrow := Policy(t, "p", slowly(a, 20)), Policy(t, "narrow", hourly(counter.SlidingLog, 1))
	h.charge(counter.Charge{Counter: named(p, "s"), N: 10 * whole})
	one := counter.Charge{Counter: named(narrow, "s"), N: 1}
	both := func(i int) []counter.Result { return h.charge(held(p, "s", 4*whole, i, counter.RecordTime), one) }
	if rs := both(1); !rs[0].Allowed || !rs[1].Allowed {
		t.Fatalf("both fit: %+v", rs)
	}
	rs := both(2)
	if !rs[0].Allowed || rs[1].Allowed {
		t.Fatalf("the narrow one is full: %+v", rs)
	}
	h.about("a refused reservation", p, "s", 6*whole)
	h.giveBack(back(held(p, "s", 4*whole, 2, counter.RecordTime), rs[0]))
	h.about("settled, though it was refused", p, "s", 6*whole)
	h.giveBack(back(held(p, "s", 4*whole, 1, counter.RecordTime), rs[0]))
	h.about("the one that was taken", p, "s", 10*whole)
}

// repeats: a check under a name is charged once, however often it comes.
func repeats(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			p := Policy(t, "p", hourly(a, 10))
			check := func(n int64, i int, allowed bool, left int64) counter.Return {
				t.Helper()
				c := held(p, "s", n, i, time.Minute)
				r := h.charge(c)[0]
				if r.Allowed != allowed || r.Remaining != left {
					t.Fatalf("request %d for %d: %+v, want %d left", i, n, r, left)
				}
				return back(c, r)
			}
			for range 3 {
				check(4, 1, true, 6)
			}
			if r := h.charge(held(p, "s", 4, 1, time.Minute))[0]; !r.Again {
				t.Fatalf("nothing was taken: %+v", r)
			}
			check(5, 2, true, 1)
			for range 2 {
				if r := h.take("s", 4, p)[0]; r.Allowed || r.Remaining != 1 {
					t.Fatalf("4 of 1: %+v", r)
				}
				check(4, 3, false, 1)
				check(4, 1, true, 1)
				check(5, 2, true, 1)
			}
			if r := h.charge(held(p, "t", 4, 1, time.Minute))[0]; r.Remaining != 6 {
				t.Fatalf("another client's name: %+v", r)
			}

			// What is given back is what was taken, and once.
			h.step(time.Second)
			more := check(9, 1, true, 1)
			h.giveBack(more, more)
			if n := h.left(p, "s"); n != 5 {
				t.Fatalf("%d are left after 4 of 9 came back", n)
			}
			check(1, 1, true, 4) // a new one

			// A refused request may be repeated when there is room.
			narrow := Policy(t, "narrow", hourly(counter.FixedWindow, 1))
			both := func() []counter.Result {
				return h.charge(held(p, "s", 1, 4, time.Minute), held(narrow, "s", 1, 4, time.Minute))
			}
			h.take("s", 1, narrow)
			if rs := both(); rs[1].Allowed || rs[0].Remaining != 4 {
				t.Fatalf("the narrow one is full: %+v", rs)
			}
			if err := h.Reset(context.Background(), []counter.Counter{named(narrow, "s")}); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if rs := both(); !rs[0].Allowed || !rs[1].Allowed || rs[0].Remaining != 3 || rs[1].Remaining != 0 {
					t.Fatalf("it was refused before: %+v", rs)
				}
			}
			// A minute after it came first, a name is as good as new, however often it came since.
			h.step(40 * time.Second)
			check(1, 4, true, 3)
			h.step(20 * time.Second)
			check(1, 4, true, 2)
		})
	}
	t.Run("in another window", func(t *testing.T) {
		h := start(t, open)
		p := Policy(t, "p", counter.Limit{Algorithm: counter.FixedWindow, Count: 10, Window: time.Second})
		c := held(p, "s", 4, 1, time.Minute)
		h.charge(c)
		h.step(time.Second)
		h.take("s", 3, p)
		r := h.charge(c)[0]
		if !r.Allowed || r.Remaining != 7 {
			t.Fatalf("repeated: %+v", r)
		}
		h.giveBack(back(c, r))
		if n := h.left(p, "s"); n != 7 {
			t.Fatalf("%d are left of 7: what a window took came back into another", n)
		}
	})
}

// concurrentHolds: requests with a name and without one come at once, and those with a name come twice.
func concurrentHolds(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			p := Policy(t, "p", hourly(a, 500))
			var admitted sync.Map // names
			got := storm(32, 32, func(worker, i int) bool {
				if worker%2 == 0 {
					return h.take("s", 1, p)[0].Allowed
				}
				c := held(p, "s", 1, worker/4<<5|i, time.Minute) // which another worker has, too
				if !h.charge(c)[0].Allowed {
					return false
				}
				_, before := admitted.Swap(c.Hold.ID, true)
				return !before
			})
			for h.take("s", 1, p)[0].Allowed { // what was on its way when the last ones were refused
				got++
			}
			if got != 500 {
				t.Fatalf("%d admitted of 500", got)
			}
		})
	}
	t.Run("settled", func(t *testing.T) {
		h := start(t, open)
		p := Policy(t, "p", slowly(counter.FixedWindow, 1000))
		storm(32, 32, func(worker, i int) bool {
			c := held(p, "s", whole, worker<<5|i, time.Minute)
			r := back(c, h.charge(c)[0])
			r.Used = int64(i) * whole / 16 // from none to twice as much
			if worker%2 == 0 {
				r.Hold, r.N, r.Used = nil, whole, 0
			}
			h.giveBack(r)
			return true
		})
		// 16 workers used 31 whole each, and the others nothing.
		if n := h.left(p, "s"); n != (1000-16*31)*whole {
			t.Fatalf("%d millionths are left, want %d", n, (1000-16*31)*whole)
		}
	})
}
