package weir_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
)

func slots(n int64, ttl time.Duration) weir.Rule {
	return weir.Rule{ID: "slots", Algorithm: weir.Concurrency, SlotTTL: ttl, Limits: []weir.Limit{{Count: n}}}
}

func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := nodes(t, weir.Rules{Rules: []weir.Rule{slots(2, 30*time.Second)}})
		req := weir.Request{APIKey: "k"}
		take := func(l *weir.Limiter) *weir.Decision {
			t.Helper()
			d := check(t, l, req)
			if !d.Allowed || !d.Unfinished() || private.Reserved(&d) || d.Slots() != 30*time.Second {
				t.Fatalf("%+v", d)
			}
			return &d
		}
		full := func(retry time.Duration) {
			t.Helper()
			if d := check(t, two, req); d.Allowed || d.RetryAfter != retry || d.Unfinished() || d.Slots() != 0 {
				t.Fatalf("%+v, want a refusal for %s", d, retry)
			}
		}
		a := take(one)
		time.Sleep(10 * time.Second)
		b := take(two)
		full(20 * time.Second)
		if err := one.Finish(t.Context(), a, weir.Outcome{}); err != nil {
			t.Error(err)
		}
		a = take(two)
		full(30 * time.Second)

		// Releasing a slot again has no effect.
		for range 3 {
			if err := two.Release(t.Context(), a); err != nil {
				t.Error(err)
			}
		}
		a = take(one)
		full(30 * time.Second)
		time.Sleep(20 * time.Second)
		for range 5 { // 100 seconds
			if err := errors.Join(one.Renew(t.Context(), a), two.Renew(t.Context(), b)); err != nil {
				t.Fatal(err)
			}
			full(30 * time.Second)
			time.Sleep(20 * time.Second)
		}
		full(10 * time.Second)

		// One client dies. Its slot expires on time, and another client gets it.
		if err := one.Renew(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10*time.Second - time.Microsecond)
		full(time.Microsecond)
		time.Sleep(time.Microsecond)
		c := take(one)
		if err := two.Renew(t.Context(), b); !errors.Is(err, weir.ErrSlotLost) {
			t.Errorf("a slot that another has: %v", err)
		}
		full(20 * time.Second)
		if err := two.Finish(t.Context(), b, weir.Outcome{Status: 200}); err != nil {
			t.Error(err)
		}
		full(20 * time.Second)
		if err := one.Release(t.Context(), c); err != nil {
			t.Error(err)
		}
		if err := one.Renew(t.Context(), c); err != nil { // late, but the slot is still free
			t.Error(err)
		}
		full(20 * time.Second)
		for _, d := range []*weir.Decision{a, c} {
			if err := one.Finish(t.Context(), d, weir.Outcome{Abandoned: true}); err != nil {
				t.Error(err)
			}
		}
		if got := leftOf(t, one, req); got != "2" {
			t.Errorf("%s are free at the end", got)
		}
	})
}

// A receipt can renew, release and finish on every node, for as long as the request takes.
func TestSlotsByReceipt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := nodes(t, weir.Rules{Rules: []weir.Rule{
			slots(1, 10*time.Second),
			{ID: "tokens", Amount: "tokens", Limits: monthly(1000)},
		}})
		req := weir.Request{APIKey: "k", Receipt: true, Reserve: time.Minute, Amounts: tokens(100)}
		receipt := check(t, one, req).Receipt
		for range 100 { // a quarter of an hour
			time.Sleep(9 * time.Second)
			if err := two.Renew(t.Context(), &weir.Decision{Receipt: receipt}); err != nil {
				t.Fatal(err)
			}
		}
		if got := leftOf(t, one, req); got != "0 900" {
			t.Errorf("%s are left while it runs", got)
		}
		for range 2 {
			if err := two.Release(t.Context(), &weir.Decision{Receipt: receipt}); err != nil {
				t.Error(err)
			}
		}
		if got := leftOf(t, one, req); got != "1 900" {
			t.Errorf("%s are left when it has released its slot", got)
		}
		other := check(t, two, req)
		for i, want := range []error{nil, counter.ErrUsed} {
			if err := two.Finish(t.Context(), &weir.Decision{Receipt: receipt}, weir.Outcome{Amounts: tokens(30)}); err != want {
				t.Errorf("finished %d times: %v", i, err)
			}
			if got := leftOf(t, one, req); got != "0 870" {
				t.Errorf("%s are left when it has finished, want those of the other", got)
			}
		}
		if err := one.Finish(t.Context(), &other, weir.Outcome{Abandoned: true}); err != nil {
			t.Error(err)
		}
		if got := leftOf(t, one, req); got != "1 970" {
			t.Errorf("%s are left at the end", got)
		}
		for _, bad := range []string{"!", receipt[1:]} {
			d := &weir.Decision{Receipt: bad}
			for _, err := range []error{one.Renew(t.Context(), d), one.Release(t.Context(), d), one.Finish(t.Context(), d, weir.Outcome{})} {
				if err != weir.ErrReceiptInvalid {
					t.Errorf("%s: %v", bad, err)
				}
			}
		}
	})
}

// The receipt of a slot lasts a day, but a store remembers for only an hour that it was used. Tokens of the other limits still
// go back only once, and not after an hour.
func TestReceiptsOfSlotsGiveBackOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, slots(5, 10*time.Second), weir.Rule{ID: "day", Algorithm: weir.FixedWindow, Limits: per(10, 24*time.Hour)})
		req := weir.Request{APIKey: "k", Receipt: true}
		early, late := check(t, l, req).Receipt, check(t, l, req).Receipt
		if err := refund(t, l, early); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			time.Sleep(61 * time.Minute)
			for _, receipt := range []string{early, late} {
				if err := refund(t, l, receipt); err != nil && err != counter.ErrUsed {
					t.Error(err)
				}
			}
			if got := leftOf(t, l, req); got != "5 9" {
				t.Fatalf("%s are left, want 5 slots, and 9 tokens", got)
			}
		}
	})
}

// Seal makes receipts for decisions with slots, and for no others.
func TestSeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := nodes(t, weir.Rules{Rules: []weir.Rule{
			slots(1, 10*time.Second),
			{ID: "plain", Algorithm: weir.FixedWindow, Limits: monthly(10)},
		}})
		req := weir.Request{APIKey: "k"}
		d := check(t, one, req)
		d.Receipt = private.Seal(one, d)
		if d.Receipt == "" {
			t.Fatal("no receipt")
		}
		for range 10 {
			time.Sleep(9 * time.Second)
			if err := two.Renew(t.Context(), &weir.Decision{Receipt: d.Receipt}); err != nil {
				t.Fatal(err)
			}
		}
		if err := two.Finish(t.Context(), &weir.Decision{Receipt: d.Receipt}, weir.Outcome{Abandoned: true}); err != nil {
			t.Fatal(err)
		}
		if got := leftOf(t, one, req); got != "1 9" {
			t.Errorf("%s are left, want the slot, and what wasn't asked a receipt for as it was", got)
		}
		l := limiter(t, weir.Rule{ID: "plain", Limits: per(1, time.Hour)})
		if d = check(t, l, req); d.Receipt != "" {
			t.Fatal("a receipt that nobody asked for")
		}
		if d.Receipt = private.Seal(l, d); d.Receipt != "" {
			t.Error("a receipt without slots")
		}
	})
}

// Slots are taken together with the other limits, all or nothing. A request takes as many slots as it costs.
func TestSlotsBesideOtherLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, slots(5, 0), weir.Rule{ID: "requests", Algorithm: weir.FixedWindow, Limits: monthly(4)})
		req := weir.Request{APIKey: "k", Cost: 3}
		d := check(t, l, req)
		if !d.Allowed || leftOf(t, l, req) != "2 1" || d.Slots() != 30*time.Second {
			t.Fatalf("%+v", d)
		}
		if check(t, l, weir.Request{APIKey: "k", Cost: 2}).Allowed || leftOf(t, l, req) != "2 1" {
			t.Error("the other limit refused it, and a slot was taken")
		}
		if e := check(t, l, weir.Request{APIKey: "k", Cost: 6}); e.Allowed || e.RetryAfter != weir.Never {
			t.Errorf("more than there are: %+v", e)
		}
		if e := check(t, l, weir.Request{APIKey: "k", Peek: true}); !e.Allowed || e.Unfinished() || e.Slots() != 0 || leftOf(t, l, req) != "2 1" {
			t.Errorf("a peek: %+v", e)
		}
		if err := l.Finish(t.Context(), &d, weir.Outcome{Status: 200}); err != nil || leftOf(t, l, req) != "5 1" {
			t.Error("finished:", leftOf(t, l, req), err)
		}
		check(t, l, weir.Request{APIKey: "k"})
		if n, err := l.Reset(t.Context(), &req); n != 2 || err != nil || leftOf(t, l, req) != "5 4" {
			t.Error("reset:", n, err, leftOf(t, l, req))
		}
		if err := private.Credit(l, t.Context(), &req); err != nil || leftOf(t, l, req) != "5 4" {
			t.Error("credited:", err, leftOf(t, l, req))
		}
	})
}

// While the store can't be reached, slots are taken from Options.Local. They are renewed and released there, however the
// request ends.
func TestLocalSlots(t *testing.T) {
	ends := map[string]func(l *weir.Limiter, d *weir.Decision) error{
		"finish": func(l *weir.Limiter, d *weir.Decision) error {
			return l.Finish(t.Context(), d, weir.Outcome{Status: 200})
		},
		"abandoned": func(l *weir.Limiter, d *weir.Decision) error {
			return l.Finish(t.Context(), d, weir.Outcome{Abandoned: true})
		},
		"release": func(l *weir.Limiter, d *weir.Decision) error { return l.Release(t.Context(), d) },
		"both": func(l *weir.Limiter, d *weir.Decision) error {
			return errors.Join(l.Release(t.Context(), d), l.Release(t.Context(), d), l.Finish(t.Context(), d, weir.Outcome{}))
		},
	}
	for name, end := range ends {
		for _, receipt := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				rule := slots(2, 10*time.Second)
				rule.OnStoreFailure = weir.FailLocal
				rs := compile(t, weir.Rules{Rules: []weir.Rule{rule, {ID: "requests", Algorithm: weir.FixedWindow, Limits: monthly(100)}}})
				store, local := &brokenStore{Store: memstore.New(memstore.Options{}), fails: []string{"slots"}}, memstore.New(memstore.Options{})
				l := weir.NewLimiter(store, rs, weir.Options{Local: local})
				req := weir.Request{APIKey: "k", Receipt: receipt}
				var held [2]weir.Decision
				for i := range held {
					var err error
					held[i], err = l.Check(t.Context(), &req)
					if d := &held[i]; !d.Allowed || !d.Degraded || !errors.Is(err, errGone) || !d.Unfinished() || d.Slots() != 10*time.Second || !d.Limits()[0].Local {
						t.Fatalf("%+v, %v", d, err)
					}
				}
				for range 3 {
					if d, _ := l.Check(t.Context(), &req); d.Allowed || d.Unfinished() {
						t.Fatalf("%s: a third slot: %+v", name, d)
					}
					time.Sleep(9 * time.Second)
					for i := range held {
						if err := l.Renew(t.Context(), &held[i]); err != nil {
							t.Errorf("%s: %v", name, err)
						}
					}
				}
				store.fails = nil // the store is back, but slots taken before are still local
				for i := range held {
					if err := end(l, &held[i]); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
				store.fails = []string{"slots"}
				for i := range 3 {
					if d, _ := l.Check(t.Context(), &req); d.Allowed != (i < 2) {
						t.Errorf("%s, receipt %v: %d slots were released", name, receipt, i)
					}
				}
			})
		}
	}
}

// A request that is refused after it took a slot gives the slot back at once, to the store or to Options.Local.
func TestSlotsOfRefusedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for i, fails := range [][]string{{"closed"}, {"closed", "slots"}, {"full", "slots"}, {"full", "slots"}} {
			rule := slots(1, time.Hour)
			rule.OnStoreFailure = weir.FailLocal
			rs := compile(t, weir.Rules{Rules: []weir.Rule{
				rule,
				{ID: "closed", OnStoreFailure: weir.FailRefuse, Limits: per(100, time.Hour)},
				{ID: "full", By: []string{"user"}, OnStoreFailure: weir.FailLocal, Limits: per(1, time.Hour)},
			}})
			store := &brokenStore{Store: memstore.New(memstore.Options{})}
			local := &brokenStore{Store: memstore.New(memstore.Options{})}
			l := weir.NewLimiter(store, rs, weir.Options{Local: local})
			if store.fails = fails; i == 3 {
				local.fails = []string{"full"}
			} else if i == 2 {
				if d, _ := l.Check(t.Context(), &weir.Request{APIKey: "other", User: "u"}); !d.Allowed {
					t.Fatalf("%+v", d)
				}
			}
			if d, err := l.Check(t.Context(), &weir.Request{APIKey: "k", User: "u"}); d.Allowed || d.Unfinished() || err == nil {
				t.Fatalf("%v: %+v, %v", fails, d, err)
			}
			store.fails, local.fails = nil, nil
			if len(fails) > 1 {
				store.fails = []string{"slots"}
			}
			if d, _ := l.Check(t.Context(), &weir.Request{APIKey: "k", User: "v"}); !d.Allowed {
				t.Errorf("%v: a refused request has kept its slot: %+v", fails, d)
			}
		}
	})
}

// This test compares 10,000 short sequences with a model. Clients take slots, die, renew late and release twice. A check is
// allowed exactly when fewer requests than the limit are in flight by the store's clock, and at the end no slot is taken.
func TestSlotsSimulated(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	store := memstore.New(memstore.Options{Now: clock})
	const ttl = 10 * time.Second
	var nodes [3][2]*weir.Limiter // by the limit, less one
	for limit := range nodes {
		rs := compile(t, weir.Rules{Rules: []weir.Rule{slots(int64(limit+1), ttl)}})
		for i := range nodes[limit] {
			nodes[limit][i] = weir.NewLimiter(store, rs, weir.Options{Secret: nodesSecret, Now: clock})
		}
	}
	random := rand.New(rand.NewPCG(10, 2))
	type slot struct {
		weir.Decision
		end time.Time // by the model; in the past if it has none
	}
	allowed, refused, lost, late := 0, 0, 0, 0
	for run := range 10_000 {
		limit := random.IntN(len(nodes))
		req := weir.Request{APIKey: fmt.Sprint("k", run)}
		var all []*slot
		live := func() (n int) {
			for _, s := range all {
				if s.end.After(now) {
					n++
				}
			}
			return n
		}
		for range 20 {
			l := nodes[limit][random.IntN(2)]
			before := live()
			room := before <= limit
			act := random.IntN(10)
			if len(all) == 0 {
				act = 0
			}
			switch {
			case act < 4: // takes
				req.Receipt = random.IntN(8) == 0
				d := check(t, l, req)
				if d.Allowed != room {
					t.Fatalf("run %d: allowed %v with %d of %d in flight", run, d.Allowed, before, limit+1)
				}
				if d.Allowed {
					all = append(all, &slot{d, now.Add(ttl)})
					allowed++
				} else {
					refused++
				}
			case act < 6: // renews, in time or late
				s := all[random.IntN(len(all))]
				had := s.end.After(now)
				err := l.Renew(t.Context(), &s.Decision)
				switch {
				case had || room:
					if err != nil {
						t.Fatalf("run %d: had its slot %v, %d of %d in flight: %v", run, had, before, limit+1, err)
					}
					s.end = now.Add(ttl)
				case !errors.Is(err, weir.ErrSlotLost):
					t.Fatalf("run %d: renewed what it had lost: %v", run, err)
				default:
					lost++
				}
				if !had {
					late++
				}
			case act < 8: // releases, perhaps twice, perhaps late
				s := all[random.IntN(len(all))]
				if err := l.Release(t.Context(), &s.Decision); err != nil {
					t.Fatal(err)
				}
				s.end = time.Time{}
			default: // nothing, so slots may expire
				now = now.Add(time.Duration(random.Int64N(int64(ttl))) / 2 * time.Duration(1+random.IntN(2)))
			}
			if n := live(); n > limit+1 {
				t.Fatalf("run %d: %d in flight, of %d", run, n, limit+1)
			}
		}
		if run%2 == 0 {
			now = now.Add(ttl) // all die
		} else {
			for _, s := range all {
				if err := nodes[limit][0].Release(t.Context(), &s.Decision); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := leftOf(t, nodes[limit][1], req); got != fmt.Sprint(limit+1) {
			t.Fatalf("run %d: %s of %d are free at the end", run, got, limit+1)
		}
		if d := check(t, nodes[limit][0], weir.Request{APIKey: req.APIKey, Cost: int64(limit + 1)}); !d.Allowed {
			t.Fatalf("run %d: not all are free at the end", run)
		} else if err := nodes[limit][0].Finish(t.Context(), &d, weir.Outcome{}); err != nil {
			t.Fatal(err)
		}
	}
	if min(allowed, refused, lost, late) < 1000 {
		t.Errorf("%d allowed, %d refused, %d renewed late, %d of them lost: that is not what it was for", allowed, refused, late, lost)
	}
	if s := store.Stats(); s.Counters != 0 {
		t.Errorf("%d counters are left", s.Counters)
	}
}

// With concurrent clients, no more of them than the limit hold a slot, each by its own clock.
func TestSlotsOfManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, ttl = 7, 10 * time.Second
		one, two := nodes(t, weir.Rules{Rules: []weir.Rule{slots(limit, ttl)}})
		req := weir.Request{APIKey: "k"}
		var inFlight, most atomic.Int64
		enter := func() {
			n := inFlight.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
		}
		leave := func() { inFlight.Add(-1) }
		var wg sync.WaitGroup
		for client := range 60 {
			random := rand.New(rand.NewPCG(uint64(client), 1))
			pause := func(d time.Duration) { time.Sleep(time.Duration(random.Int64N(int64(d))) + 1) }
			l := []*weir.Limiter{one, two}[client%2]
			wg.Go(func() {
				for range 40 {
					pause(3 * ttl)
					d, err := l.Check(t.Context(), &req)
					if err != nil {
						t.Error(err)
					}
					if !d.Allowed {
						continue
					}
					enter()
					switch random.IntN(4) {
					case 0: // dies: it keeps its slot until the slot expires
						time.Sleep(ttl - time.Microsecond)
						leave()
						continue
					case 1: // stalls, and continues if it still has its slot
						time.Sleep(ttl - time.Microsecond)
						leave()
						pause(ttl)
						if l.Renew(t.Context(), &d) == nil {
							enter()
							pause(ttl - time.Microsecond)
							leave()
						}
					case 2: // renews in time
						for range random.IntN(5) {
							pause(ttl - time.Microsecond)
							if err := l.Renew(t.Context(), &d); err != nil {
								t.Error(err)
							}
						}
						leave()
					default:
						pause(ttl - time.Microsecond)
						leave()
					}
					for range 1 + random.IntN(2) {
						if err := l.Release(t.Context(), &d); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		if n := most.Load(); n != limit {
			t.Errorf("up to %d were in flight, of %d", n, limit)
		}
		time.Sleep(ttl)
		if got := leftOf(t, one, req); got != "7" {
			t.Errorf("%s are free at the end", got)
		}
	})
}
