package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// far is a store some distance away that records its asks and can be lost.
type far struct {
	Lender
	delay   time.Duration
	asks    atomic.Int64
	returns atomic.Int64
	lost    atomic.Bool

	lostPolicy atomic.Pointer[counter.Policy] // alone
}

func (f *far) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	f.asks.Add(1)
	time.Sleep(f.delay)
	f.Lender.Take(ctx, charges, results)
}

func (f *far) Lend(ctx context.Context, asks []ledger.Ask, grants []ledger.Grant) {
	f.asks.Add(1)
	time.Sleep(f.delay)
	err := ctx.Err()
	if f.lost.Load() {
		err = errLost
	}
	if lost := f.lostPolicy.Load(); lost != nil && err == nil {
		for i := range asks {
			if asks[i].Policy == lost {
				grants[i] = ledger.Grant{Result: counter.Result{Err: errLost}}
			} else {
				f.Lender.Lend(ctx, asks[i:i+1], grants[i:i+1])
			}
		}
		return
	}
	if err == nil {
		f.Lender.Lend(ctx, asks, grants)
		return
	}
	for i := range grants {
		grants[i] = ledger.Grant{Result: counter.Result{Err: err}}
	}
}

func (f *far) TakeBack(ctx context.Context, unspent []ledger.Unspent) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, u := range unspent {
		f.returns.Add(u.N)
	}
	return f.Lender.TakeBack(ctx, unspent)
}

// bubble runs a test in virtual time, with a store around a model that is half a millisecond away.
func bubble(t *testing.T, o Options, f func(t *testing.T, s *Store, f *far)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		inner := &far{Lender: storetest.NewModel(time.Now), delay: 500 * time.Microsecond}
		s := New(inner, o)
		f(t, s, inner)
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // for timers, which are virtual
	})
}

func charge(p *counter.Policy, subject string, n int64) counter.Charge {
	return counter.Charge{Counter: counter.Counter{Policy: p, Subject: []byte(subject)}, N: n}
}

func take(s counter.Store, charges ...counter.Charge) []counter.Result {
	results := make([]counter.Result, len(charges))
	s.Take(context.Background(), charges, results)
	return results
}

// warm makes the node hold tokens of a counter.
func warm(t *testing.T, s *Store, p *counter.Policy, subject string) {
	t.Helper()
	for range 100 {
		if r := take(s, charge(p, subject, 1))[0]; r.Err != nil || !r.Allowed {
			t.Fatalf("warming: %+v", r)
		}
		time.Sleep(time.Millisecond)
	}
}

// remaining returns how many tokens the store itself has left.
func remaining(f *far, p *counter.Policy, subject string) int64 {
	c := charge(p, subject, 1)
	c.Peek = true
	return take(f.Lender, c)[0].Remaining
}

func holds(s *Store, p *counter.Policy, subject string) (n int64) {
	s.withCounter(&counter.Counter{Policy: p, Subject: []byte(subject)}, func(x *borrower) { n = x.held })
	return n
}

func perDay(t *testing.T, n int64) *counter.Policy {
	return storetest.Policy(t, "p", counter.Limit{Count: n, Window: 24 * time.Hour})
}

func perHour(t *testing.T, n int64) *counter.Policy {
	return storetest.Policy(t, "p", counter.Limit{Count: n, Window: time.Hour})
}

func perSecond(t *testing.T, n int64) *counter.Policy {
	return storetest.Policy(t, "p", counter.Limit{Count: n, Window: time.Second})
}

// refilled is at most how much a limit of a million an hour may have refilled by now.
func refilled(begun time.Time) int64 { return int64(time.Since(begun)/(time.Hour/1_000_000)) + 1 }

// TestWarmChecksStayHere also checks that their results are right, since no other node holds tokens.
func TestWarmChecksStayHere(t *testing.T) {
	for _, a := range leasing {
		t.Run(a.String(), func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
				p := storetest.Policy(t, "p", counter.Limit{Algorithm: a, Count: 1_000_000, Window: time.Hour})
				begun := time.Now()
				for i := range int64(5000) {
					r := take(s, charge(p, "s", 1))[0]
					if !r.Allowed || r.Remaining > 1_000_000-i-1+refilled(begun) || r.Remaining < 1_000_000-i-2 {
						t.Fatalf("check %d: %+v", i+1, r)
					}
					time.Sleep(100 * time.Microsecond)
				}
				if n := f.asks.Load(); n > 500 {
					t.Errorf("5000 checks asked the store %d times", n)
				}
			})
		})
	}
}

// TestPeeksSeeWhatIsHeld checks that a peek includes held tokens, because the next request can spend them.
func TestPeeksSeeWhatIsHeld(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p, other := perHour(t, 1_000_000), storetest.Policy(t, "other", counter.Limit{Count: 5, Window: time.Second})
		warm(t, s, p, "s")
		held := holds(s, p, "s")
		if held == 0 {
			t.Fatal("nothing is held: the test shows nothing")
		}
		peek, second := charge(p, "s", 1), charge(other, "s", 1)
		peek.Peek, second.Peek = true, true
		for _, r := range [][]counter.Result{take(s, peek), take(s, second, peek)} {
			if got, there := r[len(r)-1].Remaining, remaining(f, p, "s"); got < there+held-1 || got > there+held {
				t.Errorf("%d are left, where the store has %d and the node holds %d", got, there, held)
			}
		}
		if now := holds(s, p, "s"); now != held {
			t.Errorf("a peek took %d", held-now)
		}
	})
}

// TestUnspentTokensGoBack checks that tokens go back when a lease ends, when the store closes, and when another counter evicts
// theirs.
func TestUnspentTokensGoBack(t *testing.T) {
	const spent = 100
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := perHour(t, 1_000_000)
		warm(t, s, p, "s")
		if holds(s, p, "s") == 0 {
			t.Fatal("nothing is held: the test shows nothing")
		}
		time.Sleep(ledger.MaxLease)
		if got := remaining(f, p, "s"); got < 1_000_000-spent {
			t.Errorf("after the lease %d are left", got)
		}
	})
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := perHour(t, 1_000_000)
		warm(t, s, p, "s")
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := remaining(f, p, "s"); got < 1_000_000-spent {
			t.Errorf("after closing %d are left", got)
		}
		take(s, charge(p, "s", 1))
		if holds(s, p, "s") != 0 {
			t.Error("a closed store borrows")
		}
	})
	bubble(t, Options{Counters: ways}, func(t *testing.T, s *Store, f *far) {
		p := perHour(t, 1_000_000)
		warm(t, s, p, "first")
		for i := range ways {
			time.Sleep(2 * time.Millisecond)
			for range 2 {
				take(s, charge(p, fmt.Sprint("s", i), 1))
			}
		}
		synctest.Wait()
		if got := remaining(f, p, "first"); got < 1_000_000-spent {
			t.Errorf("after it had to go %d are left", got)
		}
	})
}

// TestRefusalsAreRemembered checks that a refusal holds for its cost and higher ones, not for lower ones, and not past its
// time.
func TestRefusalsAreRemembered(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := storetest.Policy(t, "p", counter.Limit{Count: 10, Window: time.Minute})
		take(s, charge(p, "s", 8))
		if r := take(s, charge(p, "s", 4))[0]; r.Allowed || r.RetryAfter <= 11*time.Second {
			t.Fatalf("first refusal: %+v", r)
		}
		asks := f.asks.Load()
		time.Sleep(time.Millisecond)
		for _, n := range []int64{4, 5, 10} {
			if r := take(s, charge(p, "s", n))[0]; r.Allowed || r.RetryAfter <= 0 || r.Remaining >= n {
				t.Errorf("%d: %+v", n, r)
			}
		}
		if r := take(s, charge(p, "s", 11))[0]; r.Allowed || r.RetryAfter != counter.Never {
			t.Errorf("more than ever fits: %+v", r)
		}
		if n := f.asks.Load(); n != asks {
			t.Errorf("the store was asked %d times for what is known", n-asks)
		}
		if r := take(s, charge(p, "s", 2))[0]; !r.Allowed {
			t.Errorf("a smaller cost: %+v", r)
		}
		time.Sleep(time.Minute)
		if r := take(s, charge(p, "s", 4))[0]; !r.Allowed {
			t.Errorf("after its time: %+v", r)
		}
	})
}

// TestAHotKeyCostsFewAsks checks a key at ten times its limit, after some time.
func TestAHotKeyCostsFewAsks(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := perSecond(t, 1000)
		admitted := 0
		load := func(d time.Duration) (asks int64) {
			before := f.asks.Load()
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
				if take(s, charge(p, "s", 1))[0].Allowed {
					admitted++
				}
			}
			return f.asks.Load() - before
		}
		load(58 * time.Second)
		if n := load(2 * time.Second); n > 400 { // of 20,000 checks
			t.Errorf("%d asks in two seconds", n)
		}
		if admitted < 60_900 || admitted > 61_100 {
			t.Errorf("admitted %d in 60 s of 1000/s with a burst of 1000", admitted)
		}
	})
}

// TestNewsCountAtOnce checks changed numbers, a reset and a refund.
func TestNewsCountAtOnce(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		p := storetest.Policy(t, "p", counter.Limit{Count: 50, Window: time.Hour})
		for range 60 {
			take(s, charge(p, "s", 1))
		}
		if take(s, charge(p, "s", 1))[0].Allowed {
			t.Fatal("admitted past the limit")
		}
		if err := s.GiveBack(t.Context(), counter.Once{1}, time.Minute, []counter.Return{{Counter: charge(p, "s", 1).Counter, N: 1}}); err != nil {
			t.Fatal(err)
		}
		if !take(s, charge(p, "s", 1))[0].Allowed {
			t.Error("refused after a refund")
		}
		take(s, charge(p, "s", 1))
		if err := s.Reset(t.Context(), []counter.Counter{charge(p, "s", 1).Counter}); err != nil {
			t.Fatal(err)
		}
		if r := take(s, charge(p, "s", 1))[0]; !r.Allowed || r.Remaining != 49 {
			t.Errorf("after a reset: %+v", r)
		}
		for range 60 {
			take(s, charge(p, "s", 1))
		}
		raised := storetest.Policy(t, "p", counter.Limit{Count: 50, Window: time.Second})
		time.Sleep(time.Second)
		if !take(s, charge(raised, "s", 1))[0].Allowed {
			t.Error("refused under the numbers of before")
		}
	})
}

// TestWhatIsNeverLent checks that charges to limits that don't lend go to the store every time.
func TestWhatIsNeverLent(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		strict := perDay(t, 1_000_000)
		strict = strict.With(func(d *counter.Definition) { d.Strict = true })
		log := storetest.Policy(t, "log", counter.Limit{Algorithm: counter.SlidingLog, Count: 1_000_000, Window: time.Hour})
		queue := storetest.Policy(t, "queue", counter.Limit{Algorithm: counter.LeakyQueue, Count: 1_000_000, Window: time.Hour})
		peek := charge(perSecond(t, 1_000_000), "s", 1)
		peek.Peek = true
		for _, c := range []counter.Charge{charge(strict, "s", 1), charge(log, "s", 1), charge(queue, "s", 1), peek} {
			before := f.asks.Load()
			for range 50 {
				take(s, c)
			}
			if n := f.asks.Load() - before; n != 50 {
				t.Errorf("%s: 50 checks asked %d times", c.Policy.Name, n)
			}
		}
	})
}

// TestAnOutageGoesOnFromWhatWasKnown checks that a nearly empty counter doesn't start over.
func TestAnOutageGoesOnFromWhatWasKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := memstore.New(memstore.Options{Now: time.Now})
		inner := &far{Lender: storetest.NewModel(time.Now)}
		s := New(inner, Options{Local: local, Nodes: func() int { return 2 }})
		p := perDay(t, 400)
		p = p.With(func(d *counter.Definition) { d.OnStoreFailure = counter.FailLocal })
		warm(t, s, p, "s") // 300 are left
		for range 200 {
			take(s, charge(p, "s", 1))
		}
		time.Sleep(2 * ledger.MaxLease)
		inner.lost.Store(true)
		if r := take(s, charge(p, "s", 1))[0]; !errors.Is(r.Err, errLost) {
			t.Fatalf("%+v", r)
		}
		c := charge(p, "s", 1)
		c.Peek = true
		if got := take(local, c)[0].Remaining; got < 245 || got > 255 {
			t.Errorf("the local counter has %d left of 400, half of 300 are used", got)
		}
		_ = s.Close(t.Context())
		time.Sleep(time.Second)
	})
}

// TestAllocsOfWarmChecks checks that warm checks allocate nothing, whether allowed or refused.
func TestAllocsOfWarmChecks(t *testing.T) {
	s := New(storetest.NewModel(time.Now), Options{})
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	wide, spent := perSecond(t, 8_000_000_000), storetest.Policy(t, "spent", counter.Limit{Count: 1, Window: 24 * time.Hour})
	for name, charges := range map[string][]counter.Charge{
		"admitted": {charge(wide, "s", 1)},
		"refused":  {charge(spent, "s", 1)},
		"layers":   {charge(wide, "s", 1), charge(wide, "t", 1)},
	} {
		results := make([]counter.Result, len(charges))
		check := func() { s.Take(context.Background(), charges, results) }
		for range 1000 {
			check()
		}
		// Asks allocate, and a busy counter's leases need one every few thousand checks.
		if n := testing.AllocsPerRun(100_000, check); n > 0.01 {
			t.Errorf("%s: %v allocations a check", name, n)
		}
	}
}

func BenchmarkWarm(b *testing.B) {
	p := storetest.Policy(b, "p", counter.Limit{Count: 8_000_000_000, Window: time.Second})
	leases := New(storetest.NewModel(time.Now), Options{})
	defer leases.Close(context.Background())
	for _, st := range []struct {
		name string
		counter.Store
	}{{"memstore", memstore.New(memstore.Options{})}, {"lease", leases}} {
		b.Run(st.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				charges, results := []counter.Charge{charge(p, "0123456789abcdef", 1)}, make([]counter.Result, 1)
				for i := 0; pb.Next(); i++ {
					charges[0].Subject[0], charges[0].Subject[1] = byte(i), byte(i>>8)&3
					st.Take(context.Background(), charges, results)
				}
			})
		})
	}
}
