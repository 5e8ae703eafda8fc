//go:build !race

// The race detector allocates, so these tests run without it.

package weir

import (
	"github.com/weirhq/weir/counter"
	"testing"
	"time"
)

// A check that charges amounts allocates nothing, whether the request gives the amount, derives it from others or lacks it.
// A check that leaves a reservation or a slot behind allocates only its Hold.
func TestAllocsPerCheckOfAmountsAreNone(t *testing.T) {
	rs, err := Compile(Rules{
		Rules: []Rule{
			{ID: "requests", Limits: []Limit{PerMinute(10)}},
			{ID: "tokens", Amount: "tokens", Limits: []Limit{PerMinute(10)}},
			{ID: "spend", Amount: "usd", GiveBackUnsettled: true, Limits: []Limit{{Count: 50, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month}}}},
		},
		Prices: []Sum{{Name: "gpt*", Parts: []Weight{{"tokens", 2_500_000}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	holds := 0
	l := NewLimiter(yes{}, rs, Options{Observe: func(o *Observation) {
		for _, c := range o.Charges {
			if c.Hold != nil {
				holds++
			}
		}
	}})
	model := func(string) string { return "gpt" }
	allocs := func(req *Request) float64 {
		return testing.AllocsPerRun(1000, func() {
			if d, err := l.Check(t.Context(), req); !d.Allowed || err != nil {
				t.Error(d, err)
			}
		})
	}
	for name, req := range map[string]*Request{
		"tokens and what they cost": {APIKey: "k", Attr: model, Amounts: map[string]counter.Amount{"tokens": counter.Whole(1500)}},
		"dollars":                   {APIKey: "k", Amounts: map[string]counter.Amount{"usd": 12_000}},
		"no amounts":                {APIKey: "k"},
		"a peek":                    {APIKey: "k", Peek: true},
	} {
		if got := allocs(req); got != 0 {
			t.Errorf("%s: %v allocations a check", name, got)
		}
	}
	if holds != 0 {
		t.Errorf("%d charges had a Hold", holds)
	}
	if allocs(&Request{APIKey: "k", Reserve: time.Minute, Amounts: map[string]counter.Amount{"tokens": counter.Whole(1500)}}); holds == 0 {
		t.Error("a reservation has no Hold")
	}
}
