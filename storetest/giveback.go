package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
)

func giveBack(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			p := Policy(t, "p", hourly(a, 10))
			slot := h.take("s", 4, p)[0].Slot
			h.step(time.Second)
			h.take("s", 3, p)
			back := counter.Return{Counter: named(p, "s"), N: 4, Slot: slot}
			if err := h.GiveBack(context.Background(), counter.Once{}, 0, []counter.Return{back}); err != nil {
				t.Fatal(err)
			}
			if r := h.take("s", 7, p)[0]; !r.Allowed || r.Remaining != 0 {
				t.Fatalf("after 4 and 3 were taken and 4 given back: %+v", r)
			}
			h.step(3 * time.Hour)
			h.take("s", 10, p)
			if err := h.GiveBack(context.Background(), counter.Once{}, 0, []counter.Return{back}); err != nil {
				t.Fatal(err)
			}
			if a == counter.FixedWindow || a == counter.SlidingLog || a == counter.SlidingCounter {
				if h.take("s", 1, p)[0].Allowed {
					t.Fatal("tokens of a window that has passed came back")
				}
			}
			other := counter.Return{Counter: named(p, "nobody"), N: 4, Slot: slot}
			if err := h.GiveBack(context.Background(), counter.Once{}, 0, []counter.Return{other}); err != nil {
				t.Fatal(err)
			}
			if r := h.take("nobody", 10, p)[0]; !r.Allowed || r.Remaining != 0 {
				t.Fatalf("giving back to an untouched counter: %+v", r)
			}
		})
	}
}

func giveBackOnce(t *testing.T, open Open) {
	h := start(t, open)
	p := Policy(t, "p", hourly(counter.TokenBucket, 10))
	slot := h.take("s", 10, p)[0].Slot
	back := []counter.Return{{Counter: named(p, "s"), N: 1, Slot: slot}}
	for i := range 3 {
		once := counter.Once{15: byte(i + 1)}
		if err := h.GiveBack(context.Background(), once, time.Hour, back); err != nil {
			t.Fatal(err)
		}
		h.step(time.Millisecond)
		for range 3 {
			if err := h.GiveBack(context.Background(), once, time.Hour, back); err != counter.ErrUsed {
				t.Fatalf("the second use of one Once: %v, want ErrUsed", err)
			}
		}
	}
	if r := h.take("s", 3, p)[0]; !r.Allowed || r.Remaining != 0 {
		t.Fatalf("after three returns of one token: %+v", r)
	}

	// A return of nothing uses its Once, too: a receipt whose tokens stay taken has been finished.
	nothing := []counter.Return{{Counter: named(p, "s"), Slot: slot}}
	if err := h.GiveBack(context.Background(), counter.Once{9}, time.Hour, nothing); err != nil {
		t.Fatal(err)
	}
	if err := h.GiveBack(context.Background(), counter.Once{9}, time.Hour, back); err != counter.ErrUsed {
		t.Fatalf("the second use of a Once that gave back nothing: %v, want ErrUsed", err)
	}
	if r := h.take("s", 1, p)[0]; r.Allowed {
		t.Fatalf("after a return of nothing: %+v", r)
	}

	// Of several calls that race for one Once, one wins.
	once := counter.Once{0: 1}
	var wg sync.WaitGroup
	wins := make([]bool, 16)
	for i := range wins {
		wg.Go(func() { wins[i] = h.GiveBack(context.Background(), once, time.Hour, back) == nil })
	}
	wg.Wait()
	won := 0
	for _, w := range wins {
		if w {
			won++
		}
	}
	if won != 1 {
		t.Fatalf("%d of 16 concurrent uses of one Once succeeded", won)
	}
}

// recordedReturns: a refund that the record of a hold stands for happens once for each time that it was taken, and takes what
// else was charged with it. Slots are freed in any case.
func recordedReturns(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			p, plain, flight := Policy(t, "p", hourly(a, 10)), Policy(t, "plain", hourly(counter.FixedWindow, 10)), Policy(t, "flight", inFlight(10))
			c, other, sl := held(p, "s", 3, 1, time.Hour), counter.Charge{Counter: named(plain, "s"), N: 2, Returnable: true}, slot(flight, "s", 1, 2)
			left := func(what string, a, b, c int64) {
				t.Helper()
				if x, y, z := h.left(p, "s"), h.left(plain, "s"), h.left(flight, "s"); x != a || y != b || z != c {
					t.Fatalf("%s: %d, %d and %d are left, want %d, %d and %d", what, x, y, z, a, b, c)
				}
			}
			for round := range 2 {
				results := h.charge(c, other, sl)
				recorded := back(c, results[0])
				recorded.Recorded = true
				returns := []counter.Return{back(sl, results[2]), recorded, back(other, results[1])}
				left("taken", 7, 8, 9)
				for i, want := range []error{nil, counter.ErrUsed, counter.ErrUsed} {
					if err := h.GiveBack(context.Background(), counter.Once{7}, time.Hour, returns); err != want {
						t.Fatalf("refund %d in round %d: %v, want %v", i, round, err, want)
					}
					left("given back", 10, 10, 10)
					if i == 1 {
						h.charge(sl) // and another request has the slot
						left("without the record", 10, 10, 9)
					}
				}
			}
		})
	}
}
