package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/weirhq/weir/counter"
)

// oneCounterTwice: a counter that a call names several times is asked for all of the tokens, and
// charged once. No call waits for ever, whatever the order and whatever other calls run at the same
// moment.
func oneCounterTwice(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			p, low := Policy(t, "p", hourly(a, 10)), Policy(t, "p", hourly(a, 6))
			ghost := Policy(t, "p", hourly(a, 10))
			ghost = ghost.With(func(d *counter.Definition) { d.Shadow = true })
			other := Policy(t, "other", hourly(a, 100))
			both := func(ns ...int64) []counter.Result {
				charges := []counter.Charge{{Counter: named(other, "s"), N: 1}}
				for _, n := range ns {
					charges = append(charges, counter.Charge{Counter: named(p, "s"), N: n})
				}
				return h.charge(charges...)
			}
			if rs := both(2, 3); !rs[0].Allowed || !rs[1].Allowed || !rs[2].Allowed || rs[1].Remaining != 5 || rs[2].Remaining != 5 {
				t.Fatalf("2 and 3 of 10: %+v", rs)
			}
			for _, r := range both(3, 3)[1:] {
				if r.Allowed || r.Remaining != 5 || r.RetryAfter <= 0 {
					t.Fatalf("3 and 3 of the 5 that are left: %+v", r)
				}
			}
			for _, r := range both(6, 5)[1:] {
				if r.Allowed || r.RetryAfter != counter.Never {
					t.Fatalf("6 and 5, which never fit: %+v", r)
				}
			}
			if r := both(2, 2, 1)[3]; !r.Allowed || r.Remaining != 0 {
				t.Fatalf("2, 2 and 1 of the 5 that are left: %+v", r)
			}
			if r := h.charge(counter.Charge{Counter: named(other, "s"), N: 1, Peek: true})[0]; r.Remaining != 98 {
				t.Fatalf("a refused request was charged to another counter: %+v", r)
			}

			// Numbers that differ, one way round and the other: what doesn't fit the lower ones is refused, and a
			// shadow that doesn't fit is no reason to charge nothing.
			for i, order := range [][]*counter.Policy{{p, low}, {low, p}, {ghost, low}, {low, ghost}} {
				subject := fmt.Sprint("order ", i)
				if rs := h.take(subject, 4, order...); rs[slices.Index(order, low)].Allowed {
					t.Fatalf("order %d: 4 and 4 of 6: %+v", i, rs)
				}
				if rs := h.take(subject, 3, order...); !rs[0].Allowed || !rs[1].Allowed {
					t.Fatalf("order %d: 3 and 3 of 6: %+v", i, rs)
				}
			}
			lowGhost := Policy(t, "p", hourly(a, 1))
			lowGhost = lowGhost.With(func(d *counter.Definition) { d.Shadow = true })
			for i, order := range [][]*counter.Policy{{p, lowGhost}, {lowGhost, p}} {
				if r := h.take(fmt.Sprint("ghost ", i), 2, order...)[slices.Index(order, p)]; !r.Allowed || r.Remaining != 6 {
					t.Fatalf("beside a shadow that doesn't fit: %+v", r)
				}
			}

			var returns []counter.Return
			for i, n := range []int64{2, 3} {
				returns = append(returns, counter.Return{Counter: named(p, "s"), N: n, Slot: both(1, 1)[i].Slot})
			}
			if err := h.GiveBack(context.Background(), counter.Once{}, 0, returns); err != nil {
				t.Fatal(err)
			}
			if r := h.take("s", 5, p)[0]; !r.Allowed || r.Remaining != 0 {
				t.Fatalf("after 2 and 3 were given back: %+v", r)
			}
			if err := h.Reset(context.Background(), []counter.Counter{named(p, "s"), named(p, "s")}); err != nil {
				t.Fatal(err)
			}
			if got := storm(16, 32, func(int, int) bool { return h.take("s", 1, p, other, p)[0].Allowed }); got != 5 {
				t.Fatalf("%d requests of 1 and 1 admitted after a reset, want 5", got)
			}
		})
	}
}

func concurrentTakes(t *testing.T, open Open) {
	for _, a := range Algorithms {
		t.Run(a.String(), func(t *testing.T) {
			h := start(t, open)
			p := Policy(t, "p", hourly(a, 1000))
			got := storm(64, 32, func(int, int) bool { return h.take("s", 1, p)[0].Allowed })
			for h.take("s", 1, p)[0].Allowed { // what was on its way when the last ones were refused
				got++
			}
			if got != 1000 {
				t.Fatalf("%d admitted of 1000", got)
			}
		})
	}
}

// concurrentLayers charges the same counters in opposite orders: nobody waits
// for ever, and both limits hold exactly.
func concurrentLayers(t *testing.T, open Open) {
	h := start(t, open)
	var layers []*counter.Policy
	for i, a := range Algorithms {
		layers = append(layers, Policy(t, fmt.Sprint("layer", i), hourly(a, int64(700+100*i))))
	}
	backwards := slices.Clone(layers)
	slices.Reverse(backwards)
	take := func(worker, _ int) bool {
		order := layers
		if worker%2 == 1 {
			order = backwards
		}
		return !slices.ContainsFunc(h.take("s", 1, order...), func(r counter.Result) bool { return !r.Allowed })
	}
	got := storm(64, 32, take)
	for take(0, 0) {
		got++
	}
	if got != 700 {
		t.Fatalf("%d admitted of 700", got)
	}
	for i, p := range layers {
		if r := h.charge(counter.Charge{Counter: named(p, "s"), N: 1, Peek: true})[0]; r.Remaining != int64(100*i) {
			t.Fatalf("layer %d has %d left, want %d: a refused request was charged", i, r.Remaining, 100*i)
		}
	}
}

// storm counts how often f is true, called by many workers at once.
func storm(workers, each int, f func(worker, i int) bool) int {
	var wg sync.WaitGroup
	counts := make([]int, workers)
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				if f(w, i) {
					counts[w]++
				}
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return total
}
