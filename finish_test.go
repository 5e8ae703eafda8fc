package weir_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
)

func TestCountingByStatus(t *testing.T) {
	l := limiter(t, weir.Rule{ID: "login", By: []string{"user"}, Statuses: []int{401, 5}, Algorithm: weir.SlidingLog, Limits: per(2, time.Hour)})
	req := weir.Request{User: "u"}
	for _, status := range []int{200, 204, 403, 200} {
		d := check(t, l, req)
		if !d.Allowed {
			t.Fatalf("refused after answers that don't count: %+v", d)
		}
		if err := l.Finish(t.Context(), &d, weir.Outcome{Status: status}); err != nil {
			t.Fatal(err)
		}
		if err := l.Finish(t.Context(), &d, weir.Outcome{Status: status}); err != nil { // finishing twice gives back once
			t.Fatal(err)
		}
	}
	for _, status := range []int{401, 503} {
		d := check(t, l, req)
		if err := l.Finish(t.Context(), &d, weir.Outcome{Status: status}); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	if check(t, l, req).Allowed {
		t.Error("two failures were not counted")
	}
	// Parallel guesses are all charged before the first response.
	first, second := check(t, l, weir.Request{User: "v"}), check(t, l, weir.Request{User: "v"})
	if !first.Allowed || !second.Allowed || check(t, l, weir.Request{User: "v"}).Allowed {
		t.Error("a third guess slipped through")
	}
}

// Receipts expire by the time that nodes share, not by a node's own clock.
func TestReceiptsExpireBySharedTime(t *testing.T) {
	now := time.Now().Add(-48 * time.Hour)
	l := weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: per(10, time.Hour)}}}),
		weir.Options{Now: func() time.Time { return now }})
	if !private.Now(l).Equal(now) {
		t.Errorf("it is %v there, want %v", private.Now(l), now)
	}
	d := check(t, l, weir.Request{APIKey: "k", Receipt: true})
	now = now.Add(3 * time.Hour)
	if err := refund(t, l, d.Receipt); err != weir.ErrReceiptExpired {
		t.Errorf("three hours later: %v", err)
	}
	now = now.Add(-3 * time.Hour)
	if err := refund(t, l, d.Receipt); err != nil {
		t.Errorf("in time: %v", err)
	}
}

func TestReceipts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs := compile(t, weir.Rules{Rules: []weir.Rule{
			{ID: "a", Limits: per(10, time.Hour)},
			{ID: "b", Algorithm: weir.FixedWindow, By: []string{"user"}, Limits: per(10, time.Hour)},
		}})
		store := memstore.New(memstore.Options{})
		secret := []byte("the nodes' common secret")
		one := weir.NewLimiter(store, rs, weir.Options{Secret: secret})
		two := weir.NewLimiter(store, rs, weir.Options{Secret: secret})
		stranger := weir.NewLimiter(store, rs, weir.Options{})

		d := check(t, one, weir.Request{APIKey: "sk_secret_key", User: "u", Cost: 10, Receipt: true})
		if d.Receipt == "" || strings.Contains(d.Receipt, "sk_secret_key") {
			t.Fatalf("receipt %q", d.Receipt)
		}
		if check(t, one, weir.Request{APIKey: "sk_secret_key", User: "u"}).Allowed {
			t.Fatal("nothing was taken")
		}
		if err := refund(t, stranger, d.Receipt); err != weir.ErrReceiptInvalid {
			t.Errorf("another secret's receipt: %v", err)
		}
		for _, forged := range []string{"x", "!!", d.Receipt[1:], d.Receipt[:len(d.Receipt)-2], d.Receipt + "AA", strings.Repeat("A", 200), flip(d.Receipt)} {
			if err := refund(t, one, forged); err != weir.ErrReceiptInvalid {
				t.Errorf("forged receipt %.20q: %v", forged, err)
			}
		}
		if err := refund(t, two, d.Receipt); err != nil {
			t.Fatal(err)
		}
		for _, l := range []*weir.Limiter{one, two} {
			if err := refund(t, l, d.Receipt); err != counter.ErrUsed {
				t.Errorf("used receipt: %v", err)
			}
		}
		got := check(t, one, weir.Request{APIKey: "sk_secret_key", User: "u", Cost: 10, Receipt: true})
		if !got.Allowed || got.Remaining != 0 {
			t.Fatalf("after the refund: %+v", got)
		}
		time.Sleep(2 * time.Hour)
		if err := refund(t, one, got.Receipt); err != weir.ErrReceiptExpired {
			t.Errorf("expired receipt: %v", err)
		}
		if refused := check(t, one, weir.Request{APIKey: "k", Cost: 11, Receipt: true}); refused.Receipt != "" {
			t.Error("a refusal has a receipt")
		}
	})
}

// refund gives back what the check with a receipt took.
func refund(t *testing.T, l *weir.Limiter, receipt string) error {
	return l.Finish(t.Context(), &weir.Decision{Receipt: receipt}, weir.Outcome{Abandoned: true})
}

// flip changes one character in the middle.
func flip(s string) string {
	b := []byte(s)
	if b[len(b)/2] ^= 1; b[len(b)/2] < '0' {
		b[len(b)/2] = 'x'
	}
	return string(b)
}

func TestQueueDelaysAndCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, weir.Rule{ID: "q", Algorithm: weir.LeakyQueue, Limits: []weir.Limit{{Count: 60, Window: time.Minute, Burst: 3}}})
		var ds []weir.Decision
		for i := range 3 {
			d := check(t, l, weir.Request{APIKey: "k"})
			if !d.Allowed || d.Delay != time.Duration(i)*time.Second {
				t.Fatalf("request %d: %+v", i, d)
			}
			ds = append(ds, d)
		}
		if d := check(t, l, weir.Request{APIKey: "k"}); d.Allowed || d.RetryAfter != time.Second {
			t.Fatalf("%+v", d)
		}
		if err := l.Finish(t.Context(), &ds[2], weir.Outcome{Abandoned: true}); err != nil {
			t.Fatal(err)
		}
		if d := check(t, l, weir.Request{APIKey: "k"}); !d.Allowed || d.Delay != 2*time.Second {
			t.Fatalf("the cancelled place isn't free: %+v", d)
		}
		if err := l.Finish(t.Context(), &ds[2], weir.Outcome{Abandoned: true}); err != nil { // canceling again does nothing
			t.Fatal(err)
		}
		if check(t, l, weir.Request{APIKey: "k"}).Allowed {
			t.Fatal("cancelling twice freed two places")
		}
	})
}

func TestSecretThatComesLater(t *testing.T) {
	rs := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: per(1, time.Hour)}}})
	store := memstore.New(memstore.Options{})
	one, two := weir.NewLimiter(store, rs, weir.Options{}), weir.NewLimiter(store, rs, weir.Options{})
	d, _ := one.Check(t.Context(), &weir.Request{APIKey: "k", Receipt: true})
	if err := refund(t, two, d.Receipt); !errors.Is(err, weir.ErrReceiptInvalid) {
		t.Errorf("a receipt of another secret: %v", err)
	}
	private.SetSecret(one, []byte("common"))
	private.SetSecret(two, []byte("common"))
	d, _ = one.Check(t.Context(), &weir.Request{APIKey: "l", Receipt: true})
	if err := refund(t, two, d.Receipt); err != nil {
		t.Errorf("a receipt of the common secret: %v", err)
	}
}

// A receipt is finished once, whatever the outcome. Its decision determines which statuses count.
func TestReceiptsOfRulesThatCountByStatus(t *testing.T) {
	finish := func(l *weir.Limiter, receipt string, o weir.Outcome) error {
		return l.Finish(t.Context(), &weir.Decision{Receipt: receipt}, o)
	}
	for _, test := range []struct {
		outcome weir.Outcome
		left    [2]int64 // of login, of all
	}{
		{weir.Outcome{Status: 401}, [2]int64{7, 7}},
		{weir.Outcome{Status: 503}, [2]int64{7, 7}},
		{weir.Outcome{Status: 200}, [2]int64{10, 7}},
		{weir.Outcome{}, [2]int64{7, 7}},
		{weir.Outcome{Abandoned: true}, [2]int64{10, 10}},
		{weir.Outcome{Status: 401, Abandoned: true}, [2]int64{10, 10}},
	} {
		l := limiter(t,
			weir.Rule{ID: "login", Statuses: []int{401, 5}, Limits: per(10, time.Hour)},
			weir.Rule{ID: "all", By: []string{"ip"}, Limits: per(10, time.Hour)})
		d := check(t, l, weir.Request{APIKey: "k", IP: ip1, Cost: 3, Receipt: true})
		if !d.Unfinished() {
			t.Error("a rule counts by status, and nothing is due")
		}
		if err := finish(l, d.Receipt, test.outcome); err != nil {
			t.Fatal(err)
		}
		for _, again := range []weir.Outcome{{}, {Status: 200}, {Abandoned: true}} {
			if err := finish(l, d.Receipt, again); err != counter.ErrUsed {
				t.Errorf("%+v after %+v: %v", again, test.outcome, err)
			}
			if err := l.Finish(t.Context(), &d, again); err != counter.ErrUsed {
				t.Errorf("the decision itself, %+v after %+v: %v", again, test.outcome, err)
			}
		}
		peek := check(t, l, weir.Request{APIKey: "k", IP: ip1, Peek: true})
		if ls := peek.Limits(); ls[0].Remaining != test.left[0] || ls[1].Remaining != test.left[1] {
			t.Errorf("%+v: %d and %d left, want %v", test.outcome, ls[0].Remaining, ls[1].Remaining, test.left)
		}
	}
}

// An abandoned request gives back the tokens of all its limits, even without a receipt.
func TestAbandonedGivesBackEverything(t *testing.T) {
	l := limiter(t,
		weir.Rule{ID: "login", Statuses: []int{401}, Limits: per(10, time.Hour)},
		weir.Rule{ID: "all", By: []string{"ip"}, Limits: per(10, time.Hour)})
	d := check(t, l, weir.Request{APIKey: "k", IP: ip1, Cost: 3})
	for range 2 {
		if err := l.Finish(t.Context(), &d, weir.Outcome{Abandoned: true}); err != nil {
			t.Fatal(err)
		}
	}
	peek := check(t, l, weir.Request{APIKey: "k", IP: ip1, Peek: true})
	if ls := peek.Limits(); ls[0].Remaining != 10 || ls[1].Remaining != 10 {
		t.Errorf("%d and %d left", ls[0].Remaining, ls[1].Remaining)
	}
	if d := check(t, limiter(t, weir.Rule{ID: "a", Limits: per(10, time.Hour)}), weir.Request{APIKey: "k"}); d.Unfinished() {
		t.Error("nothing counts by status, and something is due")
	}
}

// A credit goes to the current window, because the window that was charged is unknown, and never above the limit.
func TestCredit(t *testing.T) {
	for _, algorithm := range []counter.Algorithm{weir.FixedWindow, weir.SlidingCounter, weir.TokenBucket} {
		now := time.Unix(1_700_000_040, 0).Truncate(time.Hour)
		rules := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", Algorithm: algorithm, Limits: per(10, time.Hour)}}})
		l := weir.NewLimiter(memstore.New(memstore.Options{Now: func() time.Time { return now }}), rules, weir.Options{})
		req := weir.Request{APIKey: "k", Cost: 4}
		credit := func() int64 {
			t.Helper()
			if err := private.Credit(l, t.Context(), &req); err != nil {
				t.Fatal(err)
			}
			return check(t, l, weir.Request{APIKey: "k", Peek: true}).Remaining
		}
		check(t, l, req)
		now = now.Add(2 * time.Hour)
		check(t, l, req)
		check(t, l, req)
		for i, want := range []int64{6, 10, 10} {
			if got := credit(); got != want {
				t.Errorf("%s: %d left after %d credits, want %d", algorithm, got, i+1, want)
			}
		}
	}
}

// lostAnswers is a store whose GiveBack fails, either before it does anything or after it has given tokens back.
type lostAnswers struct {
	counter.Store
	before, after int
}

func (s *lostAnswers) GiveBack(ctx context.Context, once counter.Once, keep time.Duration, returns []counter.Return) error {
	if s.before > 0 {
		s.before--
		return errors.New("lost")
	}
	err := s.Store.GiveBack(ctx, once, keep, returns)
	if s.after > 0 && err == nil {
		s.after--
		return errors.New("lost")
	}
	return err
}

// A request whose Finish failed can be finished again.
func TestFinishAfterAFailure(t *testing.T) {
	rules := map[string]weir.Rule{
		"by status":    {ID: "login", Statuses: []int{401}, Limits: per(1_000, time.Hour)},
		"a receipt":    {ID: "a", Limits: per(1_000, time.Hour)},
		"a slot":       {ID: "slots", Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 1_000, Window: time.Minute}}},
		"reservations": {ID: "tokens", Amount: "tokens", Limits: per(1_000, time.Hour)},
	}
	for name, rule := range rules {
		for _, lost := range []struct{ before, after int }{{before: 1}, {before: 3}, {after: 1}, {after: 3}, {before: 2, after: 2}} {
			synctest.Test(t, func(t *testing.T) { // so that nothing refills
				store := &lostAnswers{memstore.New(memstore.Options{}), lost.before, lost.after}
				l := weir.NewLimiter(store, compile(t, weir.Rules{Rules: []weir.Rule{rule}}), weir.Options{})
				req := weir.Request{APIKey: "k", Receipt: name == "a receipt"}
				if name == "reservations" {
					req.Amounts, req.Reserve = map[string]counter.Amount{"tokens": 10_000_000}, time.Minute
				}
				var ds []weir.Decision
				for range 10 { // so that giving back too much would show
					ds = append(ds, check(t, l, req))
				}
				each := (1_000 - ds[9].Remaining) / 10
				err, failures := l.Finish(t.Context(), &ds[0], weir.Outcome{Abandoned: true}), 0
				for ; err != nil && !errors.Is(err, counter.ErrUsed); failures++ {
					if failures == 10 {
						t.Fatalf("%s %+v: %v", name, lost, err)
					}
					err = l.Finish(t.Context(), &ds[0], weir.Outcome{Abandoned: true})
				}
				if failures == 0 {
					t.Errorf("%s %+v: no failure", name, lost)
				}
				if err := l.Finish(t.Context(), &ds[0], weir.Outcome{Abandoned: true}); err != nil && !errors.Is(err, counter.ErrUsed) {
					t.Errorf("%s %+v: once more: %v", name, lost, err)
				}
				want := 9 * each
				if lost.before == 0 && name == "by status" {
					want = 8 * each // the first attempt leaves no mark
				}
				req.Peek = true
				if got := 1_000 - check(t, l, req).Remaining; got != want {
					t.Errorf("%s %+v: %d are taken, want %d", name, lost, got, want)
				}
			})
		}
	}
}
