package lease

import (
	"context"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/storetest"
)

// aloneWith is a node that is the only one to ask a store, with its clock and charges to one counter.
func aloneWith(t *testing.T, l counter.Limit) (pass func(time.Duration), take func(ns ...int64) counter.Result, s *stepped, c counter.Counter) {
	now := storetest.Start
	s = newStepped(func() time.Time { return now })
	c = counter.Counter{Policy: storetest.Policy(t, "p", l), Subject: []byte("k")}
	pass = func(d time.Duration) { now = now.Add(d) }
	take = func(ns ...int64) counter.Result {
		charges, results := make([]counter.Charge, len(ns)), make([]counter.Result, len(ns))
		for i, n := range ns {
			charges[i] = counter.Charge{Counter: c, N: max(1, n), Peek: n == 0}
		}
		s.Take(context.Background(), charges, results)
		return results[0]
	}
	return pass, take, s, c
}

// held fails unless the node holds some of the counter's tokens.
func held(t *testing.T, s *stepped, c counter.Counter) {
	t.Helper()
	n := int64(0)
	if s.withCounter(&c, func(x *borrower) { n = x.held }); n == 0 {
		t.Fatal("the node holds nothing")
	}
}

// A call that names a counter twice needs the tokens that the node holds of it.
func TestSumsNeedWhatIsHeld(t *testing.T) {
	_, take, s, c := aloneWith(t, counter.PerSecond(50))
	for range 3 {
		take(1)
	}
	held(t, s, c)
	if r := take(1, 1); !r.Allowed || r.Remaining != 45 {
		t.Errorf("1 and 1 of 47: %+v", r)
	}
	if r := take(40, 5); !r.Allowed || r.Remaining != 0 {
		t.Errorf("40 and 5 of 45: %+v", r)
	}
}

// A node that holds tokens shows at once those that were given back.
func TestReturnsShowBesideALease(t *testing.T) {
	_, take, s, c := aloneWith(t, counter.PerSecond(50))
	r := counter.Result{}
	for range 3 {
		r = take(1)
	}
	held(t, s, c)
	back := []counter.Return{{Counter: c, N: 2, Slot: r.Slot}}
	if err := s.GiveBack(context.Background(), counter.Once{}, 0, back); err != nil {
		t.Fatal(err)
	}
	if r := take(1); r.Remaining != 48 {
		t.Errorf("3 taken, 2 given back and 1 taken of 50: %+v", r)
	}
}

// Only the store knows whether a hold existed, and so how many tokens came back with it.
func TestSettlementsShowAsTheStoreBooksThem(t *testing.T) {
	_, take, s, c := aloneWith(t, counter.PerSecond(50))
	named := []counter.Charge{{Counter: c, N: 5, Returnable: true, Hold: &counter.Hold{ID: counter.Once{1}, For: time.Minute}}}
	s.Take(context.Background(), named, make([]counter.Result, 1))
	for range 3 {
		take(1)
	}
	held(t, s, c)
	left := int64(42)
	for _, back := range []int64{5, 0} { // it is there once
		if err := s.GiveBack(context.Background(), counter.Once{}, 0, []counter.Return{{Counter: c, N: 5, Hold: named[0].Hold}}); err != nil {
			t.Fatal(err)
		}
		s.leases.running.Wait() // for what was held
		left += back - 1
		if r := take(1); r.Remaining != left {
			t.Errorf("%+v, want %d left", r, left)
		}
	}
}

// A slow bucket may lend for a moment to a node that isn't alone, so that refused clients don't have to ask one by one. No
// claim includes what is left of such a lease, so it goes back even if the bucket is nearly full.
func TestWhatNoClaimTellsGoesBack(t *testing.T) {
	pass, take, s, c := aloneWith(t, counter.Limit{Count: 80, Burst: 10, Window: 20 * time.Second})
	for range 200 {
		take(1)
		pass(time.Microsecond)
	}
	pass(3 * time.Second)
	take(1)
	held(t, s, c)
	pass(83 * time.Millisecond)
	if r := take(1); r.Remaining != 8 {
		t.Errorf("10 refilled, 1 taken, 0.3 refilled and 1 taken: %+v", r)
	}
}

// Only the node that was alone knows when it spent what it had borrowed, so reading the counter must ask that node.
func TestPeeksKnowWhatWasSpentHere(t *testing.T) {
	pass, take, s, c := aloneWith(t, counter.PerMinute(600))
	for range 60 { // a node claims nothing of its first lease
		take(1)
		pass(500 * time.Millisecond)
	}
	for {
		n := int64(0)
		if s.withCounter(&c, func(x *borrower) { n = x.held }); n == 0 {
			break
		}
		take(1)
	}
	pass(time.Second) // by which all is full, but for what was spent at once
	r := take(0)
	if r.Remaining < 590 || r.ResetAfter > time.Duration(600-r.Remaining)*100*time.Millisecond {
		t.Errorf("%+v", r)
	}
}

// A request that another limit refuses takes nothing, and the node knows as much about this counter as before.
func TestClaimsOutliveRefusalsOfOthers(t *testing.T) {
	pass, take, s, c := aloneWith(t, counter.Limit{Count: 20, Burst: 40, Window: 20 * time.Second})
	spent := storetest.Policy(t, "spent", counter.Limit{Count: 1, Window: 24 * time.Hour, Algorithm: counter.SlidingLog})
	for range 20 {
		take(1)
		pass(time.Second)
	}
	held(t, s, c)
	take(1) // of what is held: the store doesn't know
	pass(2 * time.Second)
	both := []counter.Charge{{Counter: c, N: 30}, {Counter: counter.Counter{Policy: spent, Subject: []byte("k")}, N: 2}}
	results := make([]counter.Result, 2)
	for range 2 {
		if s.Take(context.Background(), both, results); results[1].Allowed {
			t.Fatalf("2 of 1: %+v", results)
		}
		if r := results[0]; !r.Allowed || r.Remaining != 40 {
			t.Errorf("of a bucket that is full again: %+v", r)
		}
	}
	if r := take(40); !r.Allowed {
		t.Errorf("40 of 40: %+v", r)
	}
}

// A request that needs more than the node holds spends the held tokens with its ask. If the store is then lost and the request
// is refused, the node holds as many tokens as before: no more, however often this repeats.
func TestLostAsksMintNothing(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := storetest.Policy(t, "p", counter.PerMinute(100))
		for range 40 {
			take(s, charge(p, "s", 2))
			time.Sleep(time.Second)
		}
		c := counter.Counter{Policy: p, Subject: []byte("s")}
		level := func() (level, held int64) {
			s.withCounter(&c, func(x *borrower) { level, held = p.Level(x.state, storeTime(x.clock, s.now())), x.held })
			return level, held
		}
		before, held := level()
		if held == 0 || before >= 100_000_000 {
			t.Fatalf("the node holds %d, and %d millionths are left: the test shows nothing", held, before)
		}
		f.lost.Store(true)
		for range 5 {
			take(s, charge(p, "s", 100))
		}
		if after, still := level(); after > before+p.Refill(5_000) || still != held {
			t.Errorf("%d are left and %d held, after %d and %d before", after, still, before, held)
		}
	})
}
