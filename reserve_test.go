package weir_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
)

var nodesSecret = []byte("the nodes' common secret")

// nodes returns two limiters with the same rules and the same store.
func nodes(t testing.TB, doc weir.Rules) (one, two *weir.Limiter) {
	t.Helper()
	store, rs := memstore.New(memstore.Options{}), compile(t, doc)
	return weir.NewLimiter(store, rs, weir.Options{Secret: nodesSecret}), weir.NewLimiter(store, rs, weir.Options{Secret: nodesSecret})
}

// A reservation of nothing can be settled only once, too. It has no record in the store, so the mark that it was settled lasts
// as long as its receipt.
func TestReservationsOfNothingSettleOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := nodes(t, weir.Rules{Rules: []weir.Rule{{ID: "tokens", Amount: "tokens", Limits: monthly(10_000)}}})
		d := check(t, one, weir.Request{APIKey: "k", Reserve: time.Minute, Receipt: true})
		for i := range 3 {
			var want error
			if i > 0 {
				want = counter.ErrUsed
			}
			if err := two.Finish(t.Context(), &weir.Decision{Receipt: d.Receipt}, weir.Outcome{Amounts: tokens(300)}); err != want {
				t.Errorf("settlement %d: %v, want %v", i+1, err, want)
			}
			if got := leftOf(t, one, weir.Request{APIKey: "k"}); got != "9700" {
				t.Errorf("settlement %d: %s are left, want 9700", i+1, got)
			}
			time.Sleep(61 * time.Minute)
		}
	})
}

// leftOf returns exactly what a client has left of each limit.
func leftOf(t testing.TB, l *weir.Limiter, req weir.Request) string {
	t.Helper()
	req.Peek, req.Reserve, req.Repeat, req.Receipt = true, 0, counter.Once{}, false
	out := ""
	d := check(t, l, req)
	for _, s := range d.Limits() {
		out += fmt.Sprintf(" %s", s.Left())
	}
	return out[1:]
}

func monthly(n int64) []weir.Limit {
	return []weir.Limit{{Count: n, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month}}}
}

func tokens(n int64) map[string]counter.Amount {
	return map[string]counter.Amount{"tokens": counter.Whole(n)}
}

// Finish replaces a request's reservation with its usage, once, on any node.
func TestReserveAndFinish(t *testing.T) {
	of := func(change func(*weir.Rule)) weir.Rule {
		r := weir.Rule{ID: "tokens", Amount: "tokens", Limits: monthly(10_000)}
		if change != nil {
			change(&r)
		}
		return r
	}
	abandoned := weir.Outcome{Abandoned: true}
	used := func(n int64) weir.Outcome { return weir.Outcome{Status: 200, Amounts: tokens(n)} }
	parts := map[string]counter.Amount{"input": counter.Whole(100), "output": counter.Whole(50)}
	for name, row := range map[string]struct {
		rule    weir.Rule
		amounts map[string]counter.Amount
		o       weir.Outcome
		during  string
		after   string // of 20 requests and 10,000 tokens
	}{
		"less was used":                     {of(nil), tokens(1000), used(812), "19 9000", "19 9188"},
		"all of it":                         {of(nil), tokens(1000), used(1000), "19 9000", "19 9000"},
		"nothing":                           {of(nil), tokens(1000), used(0), "19 9000", "19 10000"},
		"less than nothing":                 {of(nil), tokens(1000), weir.Outcome{Amounts: map[string]counter.Amount{"tokens": -5}}, "19 9000", "19 10000"},
		"more was used":                     {of(nil), tokens(1000), used(1500), "19 9000", "19 8500"},
		"more than there is":                {of(nil), tokens(1000), used(11_000), "19 9000", "19 0"},
		"nobody knows":                      {of(nil), tokens(1000), weir.Outcome{}, "19 9000", "19 9000"},
		"nobody knows, but the status":      {of(nil), tokens(1000), weir.Outcome{Status: 502}, "19 9000", "20 9000"},
		"something else is known":           {of(nil), tokens(1000), weir.Outcome{Amounts: map[string]counter.Amount{"usd": 5}}, "19 9000", "19 9000"},
		"it wasn't served":                  {of(nil), tokens(1000), abandoned, "19 9000", "20 10000"},
		"a status that doesn't count":       {of(nil), tokens(1000), weir.Outcome{Status: 502, Amounts: tokens(812)}, "19 9000", "20 9188"},
		"the rule counts by status, too":    {of(func(r *weir.Rule) { r.Statuses = []int{2} }), tokens(1000), weir.Outcome{Status: 502, Amounts: tokens(812)}, "19 9000", "20 10000"},
		"and by this one":                   {of(func(r *weir.Rule) { r.Statuses = []int{2} }), tokens(1000), used(812), "19 9000", "19 9188"},
		"its cost multiplies":               {of(func(r *weir.Rule) { r.Cost = 3 }), tokens(1000), used(812), "19 7000", "19 7564"},
		"the default was reserved":          {of(func(r *weir.Rule) { r.Default = counter.Whole(500) }), nil, used(812), "19 9500", "19 9188"},
		"nothing was reserved":              {of(nil), tokens(0), used(812), "19 10000", "19 9188"},
		"nothing was known":                 {of(nil), nil, used(812), "19 10000", "19 9188"},
		"nothing was known, and nothing is": {of(nil), nil, weir.Outcome{}, "19 10000", "19 10000"},
		"made of others, before and after":  {of(nil), parts, weir.Outcome{Amounts: map[string]counter.Amount{"input": counter.Whole(100), "output": counter.Whole(7)}}, "19 9700", "19 9872"},
		"made of others, after":             {of(nil), tokens(1000), weir.Outcome{Amounts: parts}, "19 9000", "19 9700"},
		"it may go back, and was settled":   {of(func(r *weir.Rule) { r.GiveBackUnsettled = true }), tokens(1000), used(812), "19 9000", "19 9188"},
		"a bucket":                          {of(func(r *weir.Rule) { r.Limits = per(10_000, 366*24*time.Hour) }), tokens(1000), used(812), "19 9000", "19 9188"},
		"a leaky bucket": {of(func(r *weir.Rule) { r.Limits, r.Algorithm = per(10_000, 366*24*time.Hour), weir.LeakyBucket }),
			tokens(1000), used(812), "19 9000", "19 9188"},
	} {
		for _, by := range []string{"its decision", "a receipt", "a receipt elsewhere"} {
			t.Run(name+" by "+by, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					one, two := nodes(t, weir.Rules{
						Rules:   []weir.Rule{{ID: "requests", Statuses: []int{2}, Algorithm: weir.FixedWindow, Limits: monthly(20)}, row.rule},
						Weights: []weir.Sum{{Name: "tokens", Parts: []weir.Weight{{Amount: "input", Each: 1e12}, {Amount: "output", Each: 4e12}}}},
					})
					req := weir.Request{APIKey: "k", Amounts: row.amounts, Reserve: 2 * time.Minute, Receipt: by != "its decision"}
					d := check(t, one, req)
					if !d.Allowed || !d.Unfinished() || !private.Reserved(&d) || d.Slots() != 0 {
						t.Fatalf("%+v", d)
					}
					if got := leftOf(t, one, req); got != row.during {
						t.Errorf("while it runs, %s are left, want %s", got, row.during)
					}
					l, again := one, error(nil)
					if by == "a receipt elsewhere" {
						l, d = two, weir.Decision{Receipt: d.Receipt}
					}
					if d.Receipt != "" {
						again = counter.ErrUsed
					}
					for i, want := range []error{nil, again, again} {
						if err := l.Finish(t.Context(), &d, row.o); err != want {
							t.Errorf("time %d: %v, want %v", i, err, want)
						}
						if got := leftOf(t, two, req); got != row.after {
							t.Errorf("after %d, %s are left, want %s", i, got, row.after)
						}
					}
					if d.Unfinished() || private.Reserved(&d) {
						t.Error("it is unfinished still")
					}
				})
			})
		}
	}
}

// If a request uses more than the limit has left, the next requests pay for it.
func TestSettledBelowZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, weir.Rule{ID: "tokens", Amount: "tokens", Limits: per(1000, 1000*time.Second)}) // one a second
		req := weir.Request{APIKey: "k", Amounts: tokens(1000), Reserve: time.Minute}
		d := check(t, l, req)
		if err := l.Finish(t.Context(), &d, weir.Outcome{Amounts: tokens(1300)}); err != nil {
			t.Fatal(err)
		}
		req.Amounts = tokens(1)
		if d := check(t, l, req); d.Allowed || d.RetryAfter != 301*time.Second {
			t.Errorf("at -300: %+v", d)
		}
		time.Sleep(301*time.Second - time.Microsecond)
		if check(t, l, req).Allowed {
			t.Error("a microsecond too soon")
		}
		time.Sleep(time.Microsecond)
		if d := check(t, l, req); !d.Allowed || d.Remaining != 0 {
			t.Errorf("paid: %+v", d)
		}
	})
}

// A reservation that isn't settled stays charged, unless the rule gives it back when its time is over. A late settlement
// books the whole usage.
func TestUnsettled(t *testing.T) {
	for _, back := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			one, two := nodes(t, weir.Rules{Rules: []weir.Rule{{ID: "tokens", Amount: "tokens", GiveBackUnsettled: back, Limits: monthly(10_000)}}})
			req := weir.Request{APIKey: "k", Amounts: tokens(1000), Reserve: 2 * time.Minute, Receipt: true}
			want := func(when, keep, gone string) {
				t.Helper()
				if back {
					keep = gone
				}
				if got := leftOf(t, one, req); got != keep {
					t.Errorf("give back %v, %s: %s are left, want %s", back, when, got, keep)
				}
			}
			first, second := check(t, one, req), check(t, one, req)
			time.Sleep(2*time.Minute - time.Microsecond)
			want("in time", "8000", "8000")
			time.Sleep(time.Microsecond)
			want("when it is over", "8000", "10000")
			time.Sleep(5 * time.Hour)
			want("much later", "8000", "10000")
			if err := two.Finish(t.Context(), &weir.Decision{Receipt: first.Receipt}, weir.Outcome{Amounts: tokens(300)}); err != nil {
				t.Fatal(err)
			}
			want("settled late", "8700", "9700")
			if err := two.Finish(t.Context(), &weir.Decision{Receipt: first.Receipt}, weir.Outcome{Amounts: tokens(300)}); err != counter.ErrUsed {
				t.Error(err)
			}
			want("settled twice", "8700", "9700")
			if err := one.Finish(t.Context(), &second, weir.Outcome{Abandoned: true}); err != nil {
				t.Fatal(err)
			}
			want("and the other wasn't served", "9700", "9700")

			third, fourth := check(t, one, req), check(t, one, req)
			time.Sleep(24*time.Hour - time.Microsecond)
			if err := two.Finish(t.Context(), &third, weir.Outcome{Amounts: tokens(1002)}); err != nil {
				t.Error(err)
			}
			want("a moment before a day is over, what was used is booked", "7698", "8698")
			time.Sleep(time.Microsecond)
			for _, d := range []*weir.Decision{&third, &fourth} {
				if err := two.Finish(t.Context(), &weir.Decision{Receipt: d.Receipt}, weir.Outcome{Amounts: tokens(1)}); err != weir.ErrReceiptExpired {
					t.Error(err)
				}
			}
			want("a day later, nothing changes", "7698", "8698")
		})
	}
}

// A refused request reserves nothing, not even from limits that had room.
func TestRefusedRequestsReserveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t,
			weir.Rule{ID: "tokens", Amount: "tokens", GiveBackUnsettled: true, Limits: monthly(10_000)},
			weir.Rule{ID: "requests", Limits: per(1, 366*24*time.Hour)},
		)
		req := weir.Request{APIKey: "k", Amounts: tokens(1000), Reserve: time.Minute, Receipt: true}
		if d := check(t, l, req); !d.Allowed {
			t.Fatalf("%+v", d)
		}
		d := check(t, l, req)
		if d.Allowed || d.Unfinished() || d.Receipt != "" {
			t.Errorf("%+v", d)
		}
		if err := l.Finish(t.Context(), &d, weir.Outcome{Abandoned: true}); err != nil {
			t.Error(err)
		}
		req.Peek, req.Reserve = true, 0
		d = check(t, l, req)
		if got := d.Limits()[0].Left(); got != counter.Whole(9000) {
			t.Errorf("%s are left", got)
		}
		time.Sleep(time.Minute)
		d = check(t, l, req)
		if got := d.Limits()[0].Left(); got != counter.Whole(10_000) {
			t.Errorf("when the only reservation is over, %s are left", got)
		}
	})
}

// A request with an id is charged once within a minute, even if it is repeated on another node.
func TestRepeatedRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := nodes(t, weir.Rules{Rules: []weir.Rule{
			{ID: "requests", Algorithm: weir.FixedWindow, Limits: monthly(5)},
			{ID: "log", Algorithm: weir.SlidingLog, Limits: per(5, 100*time.Hour)},
			{ID: "tokens", Amount: "tokens", Limits: monthly(1000)},
			{ID: "slots", Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 2}}, SlotTTL: time.Hour},
		}})
		req := weir.Request{APIKey: "k", Amounts: tokens(100), Repeat: counter.Once{1}}
		want := func(when, left string) {
			t.Helper()
			if got := leftOf(t, two, req); got != left {
				t.Errorf("%s: %s are left, want %s", when, got, left)
			}
		}
		first := check(t, one, req)
		want("once", "4 4 900 1")
		for range 5 {
			if d := check(t, two, req); !d.Allowed || d.Limits()[0].Remaining != 4 {
				t.Fatalf("%+v", d)
			}
			check(t, one, req)
		}
		want("eleven times", "4 4 900 1")
		other := req
		other.Repeat = counter.Once{2}
		second := check(t, two, other)
		want("another", "3 3 800 0")
		third := req
		third.Repeat = counter.Once{3}
		if check(t, one, third).Allowed {
			t.Error("there are two slots")
		}
		if !check(t, one, req).Allowed || !check(t, two, other).Allowed {
			t.Error("those that have slots are refused")
		}
		for _, d := range []*weir.Decision{&first, &second} {
			if err := two.Finish(t.Context(), d, weir.Outcome{Status: 200}); err != nil {
				t.Fatal(err)
			}
		}
		want("finished", "3 3 800 2")
		if first = check(t, one, req); !first.Allowed || private.Reserved(&first) {
			t.Errorf("%+v", first)
		}
		want("once more, when it was finished: it has a slot again", "3 3 800 1")
		if err := one.Release(t.Context(), &first); err != nil {
			t.Error(err)
		}
		if !check(t, one, third).Allowed {
			t.Error("a refusal was remembered")
		}
		want("the one that was refused", "2 2 700 1")
		time.Sleep(time.Minute - time.Microsecond)
		if d := check(t, two, third); !d.Allowed || d.Limits()[0].Remaining != 2 {
			t.Errorf("within the minute: %+v", d.Limits())
		}
		time.Sleep(time.Minute)
		check(t, two, third)
		want("a minute after the last", "1 1 600 1")
	})
}

// A check that is repeated after a refund or a settlement is charged again. This charge can be given back once, too, with its
// own receipt or with the first one.
func TestRepeatedAfterARefund(t *testing.T) {
	for name, reserve := range map[string]time.Duration{"amounts": 0, "reserved": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one, two := nodes(t, weir.Rules{Rules: []weir.Rule{
					{ID: "requests", Algorithm: weir.FixedWindow, Limits: monthly(5)},
					{ID: "log", Algorithm: weir.SlidingLog, Limits: per(5, 100*time.Hour)},
					{ID: "tokens", Amount: "tokens", Limits: monthly(1000)},
				}})
				req := weir.Request{APIKey: "k", Amounts: tokens(100), Repeat: counter.Once{1}, Reserve: reserve, Receipt: true}
				var receipts []string
				for round := range 4 {
					d := check(t, one, req)
					again := check(t, two, req)
					if got := leftOf(t, two, req); got != "4 4 900" {
						t.Fatalf("round %d: %s are left", round, got)
					}
					receipts = append(receipts, d.Receipt, again.Receipt)
					time.Sleep([]time.Duration{time.Second, 2 * time.Minute}[round%2])
					if err := two.Finish(t.Context(), &weir.Decision{Receipt: again.Receipt}, weir.Outcome{Abandoned: true}); err != nil {
						t.Fatalf("round %d: %v", round, err)
					}
					for _, receipt := range receipts {
						if err := one.Finish(t.Context(), &weir.Decision{Receipt: receipt}, weir.Outcome{Abandoned: true}); err != counter.ErrUsed {
							t.Errorf("round %d: %v", round, err)
						}
					}
					if got := leftOf(t, two, req); got != "5 5 1000" {
						t.Fatalf("round %d, refunded: %s are left", round, got)
					}
				}
				check(t, one, req)
				time.Sleep(59 * time.Minute)
				if err := two.Finish(t.Context(), &weir.Decision{Receipt: check(t, one, req).Receipt}, weir.Outcome{Abandoned: true}); err != nil {
					t.Error(err)
				}
				if got := leftOf(t, two, req); got != "5 5 1000" {
					t.Errorf("an hour later: %s are left", got)
				}
			})
		})
	}
}

// A repeated check gives back no more than it took, whichever of its receipts is used.
func TestRepeatedRequestsGoBackOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := nodes(t, weir.Rules{Rules: []weir.Rule{
			{ID: "requests", Algorithm: weir.FixedWindow, Limits: monthly(5)},
			{ID: "tokens", Amount: "tokens", Limits: monthly(1000)},
		}})
		req := weir.Request{APIKey: "k", Amounts: tokens(100), Repeat: counter.Once{1}, Receipt: true, Reserve: time.Minute}
		check(t, one, weir.Request{APIKey: "k", Amounts: tokens(500)})
		first := check(t, one, req)
		req.Amounts = tokens(300) // a different request
		second := check(t, two, req)
		if got := leftOf(t, one, req); got != "3 400" {
			t.Fatalf("%s are left", got)
		}
		if err := one.Finish(t.Context(), &second, weir.Outcome{Abandoned: true}); err != nil {
			t.Error(err)
		}
		if got := leftOf(t, one, req); got != "4 500" {
			t.Errorf("after one, %s are left", got)
		}
		if err := two.Finish(t.Context(), &first, weir.Outcome{Abandoned: true}); err != counter.ErrUsed {
			t.Errorf("%v, want ErrUsed", err)
		}
		if got := leftOf(t, one, req); got != "4 500" {
			t.Errorf("after both, %s are left", got)
		}
	})
}
