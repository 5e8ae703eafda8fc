package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

func slotted(t testing.TB, name string, count int64, ttl time.Duration) *counter.Policy {
	t.Helper()
	return policy(t, name, counter.Concurrency, count, ttl)
}

// amounts returns a limit on an amount, in millionths.
func amounts(t testing.TB, name string, a counter.Algorithm, count int64, window time.Duration) *counter.Policy {
	t.Helper()
	return storetest.Policy(t, name, counter.Limit{Algorithm: a, Count: count, Window: window, Decimal: true})
}

func id(n int) (o counter.Once) {
	binary.BigEndian.PutUint64(o[:], uint64(n))
	o[15] = 1
	return o
}

// holding returns a charge with a hold that lasts as long as a slot or a reservation.
func holding(p *counter.Policy, subject string, n int64, name int) counter.Charge {
	c := counter.Charge{Counter: counter.Counter{Policy: p, Subject: []byte(subject)}, N: n, Returnable: true}
	c.Hold = &counter.Hold{ID: id(name), For: counter.RecordTime}
	if p.Limit.Algorithm == counter.Concurrency {
		c.Hold.For = p.Limit.Window
	}
	return c
}

// back returns the Return of a charge of which some was used.
func back(c counter.Charge, r counter.Result, used int64) counter.Return {
	return counter.Return{Counter: c.Counter, N: c.N, Slot: r.Slot, Hold: c.Hold, Used: used}
}

// keysOf returns the keys of a counter's holds.
func keysOf(s *Store, p *counter.Policy, subject string) (records, ends string) {
	c := charge{policy: p, key: keyOf(s, p, subject)}
	return c.holdNames()
}

// gone fails the test if a counter has holds.
func gone(t *testing.T, r *redistest.Server, s *Store, p *counter.Policy, subject string) {
	t.Helper()
	records, ends := keysOf(s, p, subject)
	if n := do(t, r, "EXISTS", records, ends); n != int64(0) {
		t.Errorf("%s of %s: %d keys of holds are left: %v, %v", p.Name, subject, n, do(t, r, "HGETALL", records), do(t, r, "ZRANGE", ends, "0", "-1"))
	}
}

// left returns how much of an amount is left.
func left(t testing.TB, s counter.Store, p *counter.Policy, subject string) int64 {
	t.Helper()
	r := take(t.Context(), s, peek1(p, subject))[0]
	if r.Err != nil {
		t.Fatalf("peek: %v", r.Err)
	}
	return r.Remaining
}

// TestSlotsOfADeadNodeEnd checks that slots that aren't renewed become free by Redis' clock, and not a moment sooner.
func TestSlotsOfADeadNodeEnd(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	url := "redis://" + r.Addr
	a, b := open(t, Options{URL: url}), open(t, Options{URL: url})
	const ttl = time.Second
	p := slotted(t, "slots", 3, ttl)
	for i := range 3 {
		if !mustTake(t, a, holding(p, "s", 1, i)) {
			t.Fatal("refused")
		}
	}
	last := a.Now()
	a.Close()
	refused := take(t.Context(), b, holding(p, "s", 1, 10))[0]
	if refused.Err != nil || refused.Allowed || refused.RetryAfter <= 0 || refused.RetryAfter > ttl {
		t.Fatalf("with all slots taken: %+v", refused)
	}
	until(t, func(ctx context.Context) error {
		c := holding(p, "s", 3, 11) // all of them
		if r := take(ctx, b, c)[0]; r.Err != nil || !r.Allowed {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	if d := b.Now().Sub(last); d < ttl-100*time.Millisecond { // by how much the nodes may be off
		t.Errorf("the slots ended after %v, want %v", d, ttl)
	}
	lasting(t, r)
}

// TestARenewedSlotStays also checks that a slot which its holder releases, or loses and takes again, is counted once.
func TestARenewedSlotStays(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	now := storetest.Start
	s := open(t, Options{URL: "redis://" + r.Addr, Now: func() time.Time { return now }})
	p := slotted(t, "slots", 2, 30*time.Second)
	mine, other := holding(p, "s", 1, 1), holding(p, "s", 1, 2)
	for range 10 {
		if !mustTake(t, s, mine) || used(t, s, p, "s") != 1 {
			t.Fatalf("renewed: %d slots are taken", used(t, s, p, "s"))
		}
		now = now.Add(20 * time.Second)
	}
	if !mustTake(t, s, other) || mustTake(t, s, holding(p, "s", 1, 3)) {
		t.Error("two slots, and not two requests in flight")
	}
	now = now.Add(time.Minute)
	if got := used(t, s, p, "s"); got != 0 {
		t.Errorf("%d slots are taken that nobody renewed", got)
	}
	gone(t, r, s, p, "s")
	if !mustTake(t, s, mine) {
		t.Error("a slot that had ended wasn't taken again")
	}
	for range 3 { // a release may be repeated
		if err := s.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{back(mine, counter.Result{}, 0)}); err != nil {
			t.Fatal(err)
		}
		gone(t, r, s, p, "s")
	}
}

// TestASettlementWithoutARecordGivesNothingBack checks that nothing is given back without a record, because it may never have
// been taken. Use beyond the charge is still charged.
func TestASettlementWithoutARecordGivesNothingBack(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := open(t, Options{URL: "redis://" + r.Addr})
	for _, a := range []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow} {
		for what, lose := range map[string]func(p *counter.Policy){
			"flushed": func(*counter.Policy) { do(t, r, "FLUSHALL") },
			"record lost": func(p *counter.Policy) {
				records, _ := keysOf(s, p, "s")
				do(t, r, "DEL", records)
			},
			"both lost": func(p *counter.Policy) {
				records, ends := keysOf(s, p, "s")
				do(t, r, "DEL", records, ends)
			},
		} {
			p := amounts(t, fmt.Sprint(a, what), a, 1000, year)
			c := holding(p, "s", 400_000_000, 1)
			res := take(t.Context(), s, c)[0]
			lose(p)
			mustTake(t, s, holding(p, "s", 300_000_000, 2))
			before := left(t, s, p, "s")
			for used, booked := range map[int64]int64{100_000_000: 0, 400_000_000: 0, 450_000_000: 50_000_000} {
				if err := s.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{back(c, res, used)}); err != nil {
					t.Fatal(err)
				}
				after := left(t, s, p, "s")
				if d := before - after - booked; d > 0 || d < -1_000_000 { // it refills a bit meanwhile
					t.Errorf("%s, %s: settled for %d, and %d became %d", a, what, used, before, after)
				}
				before = after
			}
		}
	}
	lasting(t, r)
}

// TestASettlementBooksOnce checks that a settlement is charged once, however many callers send it at the same time.
func TestASettlementBooksOnce(t *testing.T) {
	t.Parallel()
	oneServerAndACluster(t, func(t *testing.T, url string) {
		rules, err := weir.Compile(weir.Rules{Version: 1, Rules: []weir.Rule{
			{ID: "tokens", Amount: "tokens", Algorithm: counter.FixedWindow, Limits: []counter.Limit{{Count: 10_000, Window: year}}},
			{ID: "all", By: []string{}, Amount: "tokens", Algorithm: counter.FixedWindow, Limits: []counter.Limit{{Count: 10_000, Window: year}}},
			{ID: "flight", Algorithm: counter.Concurrency, Limits: []counter.Limit{{Count: 5}}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		var nodes []*weir.Limiter
		for range 3 {
			nodes = append(nodes, weir.NewLimiter(open(t, Options{URL: url}), rules, weir.Options{Secret: []byte("shared")}))
		}
		for round, used := range []int64{30, 250} {
			req := weir.Request{APIKey: fmt.Sprint("k", round), Amounts: map[string]counter.Amount{"tokens": counter.Whole(100)}, Reserve: time.Minute, Receipt: true}
			before := leftOfAll(t, nodes[0], &req)
			d, err := nodes[0].Check(t.Context(), &req)
			if err != nil || !d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
			wins := storm(100, 100, func(i int) bool {
				err := nodes[i%3].Finish(t.Context(), &weir.Decision{Receipt: d.Receipt}, weir.Outcome{Amounts: map[string]counter.Amount{"tokens": counter.Whole(used)}})
				if err != nil && !errors.Is(err, counter.ErrUsed) {
					t.Error(err)
				}
				return err == nil
			})
			if wins < 1 || wins > 3 { // one for each slot of a Cluster, at most
				t.Errorf("%d of 100 settlements were the first", wins)
			}
			if got := before - leftOfAll(t, nodes[1], &req); got != used {
				t.Errorf("settled for %d, and %d are booked", used, got)
			}
		}
	})
}

// leftOfAll returns what is left of a limit that all clients share.
func leftOfAll(t *testing.T, l *weir.Limiter, req *weir.Request) int64 {
	t.Helper()
	peek := *req
	peek.Peek, peek.Receipt, peek.Reserve = true, false, 0
	d, err := l.Check(t.Context(), &peek)
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range d.Limits() {
		if limit.Policy.Name == "all" {
			return limit.Remaining
		}
	}
	t.Fatal("no such policy")
	return 0
}

// TestHoldsUnderConcurrency checks that concurrent requests never exceed a limit.
func TestHoldsUnderConcurrency(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	var nodes []*Store
	for range 3 {
		nodes = append(nodes, open(t, Options{URL: "redis://" + r.Addr}))
	}
	policies := map[*counter.Policy]int64{slotted(t, "slots", 10, time.Hour): 1}
	for _, a := range storetest.Algorithms {
		policies[policy(t, fmt.Sprint("p", a), a, 10, year)] = 1
	}
	for _, a := range []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow} {
		policies[amounts(t, fmt.Sprint("d", a), a, 1, year)] = 100_000
	}
	for p, n := range policies {
		got := storm(100, 1000, func(i int) bool { return mustTake(t, nodes[i%3], holding(p, "s", n, i)) })
		if got != 10 {
			t.Errorf("%s: %d of 1,000 admitted, want 10", p.Name, got)
		}
		// Repeat all of them: those that were admitted are admitted again, and nothing more is taken.
		if got := storm(100, 1000, func(i int) bool { return mustTake(t, nodes[(i+1)%3], holding(p, "s", n, i)) }); got != 10 {
			t.Errorf("%s: %d of 1,000 repeated ones admitted, want the same 10", p.Name, got)
		}
	}
	lasting(t, r)
}

// TestManyHoldsEnd checks that holds end 128 at a time, in the same order as in memory, even if records of returned tokens have
// also expired, and if several charges of a request name the counter.
func TestManyHoldsEnd(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	now := storetest.Start
	clock := func() time.Time { return now }
	s, m := open(t, Options{URL: "redis://" + r.Addr, Now: clock}), memstore.New(memstore.Options{Now: clock})
	both := func(charges ...counter.Charge) []counter.Result {
		t.Helper()
		got, want := take(t.Context(), s, charges...), take(t.Context(), m, charges...)
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%s at %v: got %+v, want %+v", charges[i].Policy.Name, now, got[i], want[i])
			}
		}
		return got
	}
	for _, a := range []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow, counter.SlidingCounter, counter.Concurrency} {
		for _, pause := range []time.Duration{time.Second, 24*time.Hour + 450*time.Millisecond, 48 * time.Hour} {
			p := policy(t, fmt.Sprint(a, pause), a, 100_000, year/2)
			p = p.With(func(d *counter.Definition) { d.GivesBack = a != counter.Concurrency })
			for i := range 1000 {
				c := holding(p, "s", int64(1+i%3), i*7919%1000)
				c.Hold.For, c.Hold.GiveBack = time.Duration(i%900)*time.Millisecond, p.GivesBack && i%5 > 0
				both(c)
			}
			now = now.Add(pause)
			for i := range 24 {
				switch i % 3 {
				case 0:
					both(peek1(p, "s"))
				case 1:
					both(peek1(p, "s"), peek1(p, "s"))
				case 2:
					c := holding(p, "s", 1, 5000+i)
					both(c, c)
				}
			}
		}
	}
	lasting(t, r)
}

// TestManyHoldsOfOneMoment checks holds that end in the same microsecond because one call made them. If the clock steps back,
// all of them are shortened, 128 at a time.
func TestManyHoldsOfOneMoment(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	now := storetest.Start
	s := open(t, Options{URL: "redis://" + r.Addr, Now: func() time.Time { return now }})
	p := policy(t, "p", counter.TokenBucket, 1000, year/2)
	p = p.With(func(d *counter.Definition) { d.GivesBack = true })
	for i := range 300 {
		c := holding(p, "s", 1, i)
		c.Hold.For, c.Hold.GiveBack = 5*time.Second, true
		mustTake(t, s, c)
	}
	for range 2 {
		now = now.Add(-time.Hour)
		for range 3 {
			if got := left(t, s, p, "s"); got != 700 {
				t.Fatalf("%d are left after the clock has stepped back, want 700", got)
			}
		}
	}
	now = now.Add(5 * time.Second)
	for i, want := range []int64{828, 956, 1000} {
		if got := left(t, s, p, "s"); got != want {
			t.Errorf("%d are left at look %d after the end, want %d", got, i, want)
		}
	}
	lasting(t, r)
}

// TestOneHoldStandsForAll checks that if charges of a request name the same counter, the hold of the charge that pays stands
// for all of them, as in memory.
func TestOneHoldStandsForAll(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	now := storetest.Start
	clock := func() time.Time { return now }
	s, m := open(t, Options{URL: "redis://" + r.Addr, Now: clock}), memstore.New(memstore.Options{Now: clock})
	rnd := rand.New(rand.NewPCG(*seed, 3))
	for p, n := range withHolds(t, 40) {
		shadow := p.With(func(d *counter.Definition) { d.Shadow = true })
		for round := range 300 {
			var charges []counter.Charge
			peeks := rnd.IntN(5) == 0
			for range 1 + rnd.IntN(3) {
				c := holding(p, "s", n*(1+rnd.Int64N(3)), rnd.IntN(6))
				if rnd.IntN(3) == 0 {
					c.Policy = shadow
				}
				c.Hold.For = time.Duration(rnd.IntN(60)) * time.Second
				if c.Peek = peeks; peeks || p.Limit.Algorithm != counter.Concurrency && rnd.IntN(4) == 0 {
					c.Hold = nil
				}
				charges = append(charges, c)
			}
			got, want := take(t.Context(), s, charges...), take(t.Context(), m, charges...)
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("%s, round %d, charge %d of %d (seed %d): got %+v, want %+v", p.Name, round, i, len(charges), *seed, got[i], want[i])
				}
			}
			if c := charges[rnd.IntN(len(charges))]; c.Hold != nil && rnd.IntN(3) == 0 {
				returns := []counter.Return{back(c, want[0], 0)}
				if err := errors.Join(s.GiveBack(t.Context(), counter.Once{}, 0, returns), m.GiveBack(t.Context(), counter.Once{}, 0, returns)); err != nil {
					t.Fatal(err)
				}
			}
			now = now.Add(time.Duration(rnd.IntN(20)) * time.Second)
		}
	}
	lasting(t, r)
}
