package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
)

var flight = weir.Rule{ID: "flight", Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 5}}, SlotTTL: 30 * time.Second}

// holding returns a limiter whose slots and reservations are counted. All such limiters have the same secret, so they
// accept each other's receipts.
func holding(t testing.TB, store counter.Store, rules ...weir.Rule) *bed {
	t.Helper()
	b := &bed{t: t, reg: prometheus.NewPedanticRegistry()}
	b.metrics = metrics.New(b.reg)
	b.limiter = weir.NewLimiter(store, compile(t, weir.Rules{Rules: rules}), weir.Options{Observe: b.metrics.Observe, Holds: b.metrics, Secret: []byte("x")})
	return b
}

func (b *bed) take(req weir.Request) *weir.Decision {
	b.t.Helper()
	d, err := b.limiter.Check(b.t.Context(), &req)
	if err != nil {
		b.t.Fatal(err)
	}
	return &d
}

func (b *bed) gauge(name string) float64 {
	b.t.Helper()
	m := b.series()[name]
	if m == nil {
		return -1
	}
	return m.GetGauge().GetValue()
}

func (b *bed) wantSlots(when string, want float64) {
	b.t.Helper()
	if got := b.gauge(`weir_slots_in_use{rule="flight"}`); got != want {
		b.t.Errorf("%s: %v slots in use, want %v", when, got, want)
	}
}

func TestSlotsInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, store := t.Context(), memstore.New(memstore.Options{})
		b := holding(t, store, flight)
		b.wantSlots("before any", -1)
		first, second := b.take(weir.Request{APIKey: "a"}), b.take(weir.Request{APIKey: "a", Cost: 3})
		other := b.take(weir.Request{APIKey: "b"})
		b.wantSlots("three requests", 5)
		if d := b.take(weir.Request{APIKey: "a", Cost: 2}); d.Allowed { // only one slot is left
			t.Error("a request got slots beyond the limit")
		}
		b.take(weir.Request{APIKey: "a", Peek: true})
		b.wantSlots("refused, and peeked", 5)
		time.Sleep(20 * time.Second)
		if err := b.limiter.Renew(ctx, first); err != nil {
			t.Error(err)
		}
		if err := b.limiter.Release(ctx, second); err != nil {
			t.Error(err)
		}
		b.wantSlots("three released", 2)
		if err := errors.Join(b.limiter.Release(ctx, second), b.limiter.Finish(ctx, second, weir.Outcome{})); err != nil {
			t.Error(err) // a call may be repeated
		}
		b.wantSlots("one renewed, three released", 2)
		time.Sleep(20 * time.Second)
		b.wantSlots("what isn't renewed ends", 1)
		if err := errors.Join(b.limiter.Finish(ctx, first, weir.Outcome{}), b.limiter.Finish(ctx, other, weir.Outcome{})); err != nil {
			t.Error(err)
		}
		b.wantSlots("in the end", 0)
		id := counter.Once{7}
		for range 3 {
			b.take(weir.Request{APIKey: "a", Repeat: id})
		}
		b.wantSlots("a request that is repeated", 1)
	})
}

// The node that last took or renewed a slot counts it. A slot that isn't renewed is no longer counted anywhere.
func TestSlotsOfOtherNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		here, there := holding(t, store, flight), holding(t, store, flight)
		receipt := here.take(weir.Request{APIKey: "a", Receipt: true}).Receipt
		time.Sleep(20 * time.Second)
		if err := there.limiter.Renew(t.Context(), &weir.Decision{Receipt: receipt}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		here.wantSlots("renewed there", 0)
		there.wantSlots("renewed there", 1)
		if err := there.limiter.Finish(t.Context(), &weir.Decision{Receipt: receipt}, weir.Outcome{}); err != nil {
			t.Fatal(err)
		}
		there.wantSlots("finished there", 0)
		receipt = here.take(weir.Request{APIKey: "a", Receipt: true}).Receipt
		if err := there.limiter.Finish(t.Context(), &weir.Decision{Receipt: receipt}, weir.Outcome{}); err != nil {
			t.Fatal(err)
		}
		there.wantSlots("finished there alone", 0)
		if err := here.limiter.Finish(t.Context(), &weir.Decision{Receipt: receipt}, weir.Outcome{}); !errors.Is(err, counter.ErrUsed) {
			t.Fatal(err)
		}
		here.wantSlots("finished again here", 0)
	})
}

// Clients that take slots and never give them back can't fill the memory.
func TestSlotsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := holding(t, memstore.New(memstore.Options{}), flight)
		p, err := counter.NewPolicy("flight", weir.Limit{Algorithm: weir.Concurrency, Count: 5, Window: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		take := func(i int) {
			b.metrics.Slots(&counter.Counter{Policy: p, Subject: fmt.Append(nil, i)}, counter.Once{1}, 1, time.Minute)
		}
		for i := range 150_000 {
			take(i)
		}
		b.wantSlots("too many", 100_000)
		time.Sleep(2 * time.Minute)
		take(0)
		b.wantSlots("when their time is over", 1)
	})
}

// lost is a store that takes tokens, but fails when they are given back.
type lost struct{ counter.Store }

func (lost) GiveBack(context.Context, counter.Once, time.Duration, []counter.Return) error {
	return errors.New("lost")
}

func TestReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := weir.Rule{ID: "tokens", Amount: "tokens", Limits: []weir.Limit{weir.PerMinute(1000)}}
		usd := weir.Rule{ID: "usd", Amount: "usd", Limits: []weir.Limit{weir.PerMinute(1000)}}
		store := memstore.New(memstore.Options{})
		b, broken := holding(t, store, tokens, usd), holding(t, lost{store}, tokens, usd)
		if b.gauge(`weir_reservations{state="reserved"}`) != -1 {
			t.Error("there is a series of reservations before the first one")
		}
		amounts := map[string]counter.Amount{"tokens": counter.Whole(10), "usd": counter.Whole(1)}
		reserve := func(b *bed) *weir.Decision {
			return b.take(weir.Request{APIKey: "a", Amounts: amounts, Reserve: time.Minute, Receipt: true})
		}
		finish := func(b *bed, d *weir.Decision, o weir.Outcome, want error) {
			t.Helper()
			if err := b.limiter.Finish(t.Context(), d, o); err != want && (err == nil || want == nil || err.Error() != want.Error()) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		b.take(weir.Request{APIKey: "a", Amounts: amounts})                          // reserves nothing
		b.take(weir.Request{APIKey: "a", Amounts: amounts, Repeat: counter.Once{1}}) // nor does this
		d := reserve(b)
		finish(b, d, weir.Outcome{Amounts: map[string]counter.Amount{"tokens": 1, "usd": 1}}, nil)
		finish(b, d, weir.Outcome{Amounts: map[string]counter.Amount{"tokens": 1, "usd": 1}}, counter.ErrUsed)
		finish(b, reserve(b), weir.Outcome{Amounts: map[string]counter.Amount{"tokens": 1}}, nil) // the other amount stays unknown
		finish(b, reserve(b), weir.Outcome{}, nil)
		finish(b, reserve(b), weir.Outcome{Abandoned: true}, nil)
		reserve(b) // never settled
		finish(broken, reserve(broken), weir.Outcome{}, errors.New("lost"))
		for state, want := range map[string]float64{"reserved": 5, "settled": 1, "unknown": 2, "given_back": 1, "failed": 0} {
			if got := b.gauge(`weir_reservations{state="` + state + `"}`); got != want {
				t.Errorf("%s: %v, want %v", state, got, want)
			}
		}
		if broken.gauge(`weir_reservations{state="failed"}`) != 1 || broken.gauge(`weir_reservations{state="unknown"}`) != 0 {
			t.Error("a settlement that failed counts as settled")
		}
	})
}

// For a limit on an amount, "less than a fifth is left" is computed with fractions, not with whole numbers.
func TestNearTheLimitOfAnAmount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := holding(t, memstore.New(memstore.Options{}), weir.Rule{ID: "usd", Amount: "usd", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Fraction: 500_000, Window: time.Hour}}})
		near := func() float64 { return b.series()[`weir_near_limit_total{rule="usd"}`].GetCounter().GetValue() }
		b.take(weir.Request{APIKey: "a", Amounts: map[string]counter.Amount{"usd": 390_000}})
		if near() != 0 {
			t.Error("0.11 of 0.5 left counts as near the limit")
		}
		b.take(weir.Request{APIKey: "a", Amounts: map[string]counter.Amount{"usd": 20_000}})
		if near() != 1 {
			t.Error("0.09 of 0.5 left doesn't count as near the limit")
		}
	})
}
