package inflight

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestNoMoreThanPlaces checks that no more requests than places are in at a time, and that all waiting requests get in
// if places are freed in time.
func TestNoMoreThanPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places = 4
		g := New(places)
		var in, most, served atomic.Int64
		for range places * (1 + line) {
			go func() {
				if !g.Enter(t.Context()) {
					t.Error("shed, although its turn was to come in time")
					return
				}
				defer g.Leave()
				most.Store(max(most.Load(), in.Add(1)))
				time.Sleep(Patience / (line + 1))
				in.Add(-1)
				served.Add(1)
			}()
		}
		synctest.Wait()
		if in.Load() != places || g.waiting.Load() != places*line {
			t.Fatalf("%d in, %d waiting", in.Load(), g.waiting.Load())
		}
		if begun := time.Now(); g.Enter(t.Context()) || time.Since(begun) != 0 {
			t.Error("one who finds the line full isn't shed at once")
		}
		time.Sleep(2 * Patience)
		if most.Load() != places || served.Load() != places*(1+line) || g.waiting.Load() != 0 {
			t.Errorf("%d in at most, %d served, %d still wait", most.Load(), served.Load(), g.waiting.Load())
		}
	})
}

// TestWaitingIsBounded checks that a request that gets no place in time is shed, and that a request whose client has
// disconnected stops waiting.
func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(1)
		if !g.Enter(t.Context()) {
			t.Fatal("shed although all places were free")
		}
		begun := time.Now()
		if g.Enter(t.Context()) || time.Since(begun) != Patience {
			t.Errorf("shed after %s, want %s", time.Since(begun), Patience)
		}
		ctx, cancel := context.WithTimeout(t.Context(), Patience/2)
		defer cancel()
		begun = time.Now()
		if g.Enter(ctx) || time.Since(begun) != Patience/2 {
			t.Errorf("gone after %s, want %s", time.Since(begun), Patience/2)
		}
		g.Leave()
		if !g.Enter(t.Context()) {
			t.Error("the place isn't free")
		}
		g.Leave()
	})
}

// TestFirstComeFirstServed checks that a new request doesn't overtake waiting ones.
func TestFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(1)
		g.Enter(t.Context())
		var order []int
		for i := range 10 {
			go func() {
				if g.Enter(t.Context()) {
					order = append(order, i)
					g.Leave()
				}
			}()
			synctest.Wait()
		}
		g.Leave()
		synctest.Wait()
		for i, n := range order {
			if i != n {
				t.Fatalf("served in the order %v", order)
			}
		}
		if len(order) != 10 {
			t.Errorf("%d of 10 served", len(order))
		}
	})
}

func TestWithoutAGateAllRequestsEnter(t *testing.T) {
	g := New(0)
	if g != nil || !g.Enter(t.Context()) {
		t.Error("shed without a bound")
	}
	g.Leave()
}
