package region

import (
	"errors"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

// TestRepeatedAfterARefund checks that a check with an id that is repeated after a refund is charged again and can be
// refunded again, for a region's own limit, a shared limit, a limit counted at its home, and slots.
func TestRepeatedAfterARefund(t *testing.T) {
	hourly := []counter.Limit{{Count: 900, Window: time.Hour}}
	kinds := map[string]weir.Rule{
		"own":     {ID: "own", Algorithm: counter.FixedWindow, Limits: hourly},
		"shared":  {ID: "shared", Algorithm: counter.FixedWindow, Limits: hourly, Global: true},
		"travels": {ID: "travels", Algorithm: counter.FixedWindow, Limits: hourly, Global: true, Strict: true},
		"slots":   {ID: "slots", Algorithm: counter.Concurrency, Limits: []counter.Limit{{Count: 900}}},
	}
	for name, of := range map[string][]string{"shared": {"shared"}, "travels": {"travels"}, "all": {"own", "shared", "travels", "slots"}} {
		t.Run(name, func(t *testing.T) {
			inTime(t, func(t *testing.T, us, eu, ap *site) {
				var doc weir.Rules
				for _, kind := range of {
					doc.Rules = append(doc.Rules, kinds[kind])
				}
				rules, err := weir.Compile(doc)
				if err != nil {
					t.Fatal(err)
				}
				l := weir.NewLimiter(eu.Store, rules, weir.Options{})
				check := func(r weir.Request) weir.Decision {
					t.Helper()
					d, err := l.Check(t.Context(), &r)
					if err != nil || !d.Allowed {
						t.Fatalf("%+v, %v", d, err)
					}
					return d
				}
				left := func() (sum int64) {
					d := check(weir.Request{APIKey: "k", Peek: true})
					for _, s := range d.Limits() {
						sum += s.Remaining
					}
					return sum
				}
				check(weir.Request{APIKey: "k", Cost: 100})
				before := left()
				req := weir.Request{APIKey: "k", Repeat: counter.Once{1}, Receipt: true}
				for round := range 3 {
					first := check(req)
					again := check(req)
					if got := before - left(); got != int64(len(of)) {
						t.Errorf("round %d: the check and its repeat took %d", round, got)
					}
					for i, receipt := range []string{first.Receipt, again.Receipt, first.Receipt} {
						err := l.Finish(t.Context(), &weir.Decision{Receipt: receipt}, weir.Outcome{Abandoned: true})
						if i == 0 && err != nil || i > 0 && !errors.Is(err, counter.ErrUsed) {
							t.Errorf("round %d, refund %d: %v", round, i, err)
						}
						if got := left(); got != before {
							t.Errorf("round %d, refund %d: %d are left, and were %d", round, i, got, before)
						}
					}
				}
			})
		})
	}
}

// TestALateRefundHappensOnce checks that a second refund is refused even after an hour, when marks of refunds are
// forgotten. That holds for a limit without a record, too, if it is charged together with a shared limit, because the
// shared limit's record decides for both.
func TestALateRefundHappensOnce(t *testing.T) {
	inTime(t, func(t *testing.T, us, eu, ap *site) {
		daily := []counter.Limit{{Count: 900, Window: 24 * time.Hour}}
		rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
			{ID: "own", Algorithm: counter.FixedWindow, Limits: daily},
			{ID: "shared", Algorithm: counter.FixedWindow, Limits: daily, Amount: "tokens", Global: true},
		}})
		if err != nil {
			t.Fatal(err)
		}
		l := weir.NewLimiter(us.Store, rules, weir.Options{})
		check := func(r weir.Request) weir.Decision {
			t.Helper()
			r.APIKey, r.Amounts = "k", map[string]counter.Amount{"tokens": counter.Whole(5)}
			d, err := l.Check(t.Context(), &r)
			if err != nil || !d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
			return d
		}
		left := func() (all [2]int64) {
			d := check(weir.Request{Peek: true})
			for i, s := range d.Limits() {
				all[i] = s.Remaining
			}
			return all
		}
		check(weir.Request{Cost: 10})
		before := left()
		receipt := check(weir.Request{Reserve: time.Hour, Receipt: true}).Receipt
		for i := range 3 {
			for _, s := range []*site{eu, ap} { // so that hours of empty messages don't take long to simulate
				s.cut.Store(true)
			}
			time.Sleep(80 * time.Minute)
			for _, s := range []*site{eu, ap} {
				s.cut.Store(false)
			}
			time.Sleep(3 * beatEvery)
			err := l.Finish(t.Context(), &weir.Decision{Receipt: receipt}, weir.Outcome{Abandoned: true})
			if i == 0 && err != nil || i > 0 && !errors.Is(err, counter.ErrUsed) {
				t.Errorf("refund %d: %v", i, err)
			}
			if got := left(); got != before {
				t.Errorf("refund %d: %d are left, and were %d", i, got, before)
			}
		}
	})
}
