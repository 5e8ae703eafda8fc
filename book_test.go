package weir_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
)

// TestBook: a charge that comes too late to be refused is always taken, even if another rule refuses. Peeks are refused
// until the refill has made up for it.
func TestBook(t *testing.T) {
	for _, algorithm := range []counter.Algorithm{weir.TokenBucket, weir.LeakyBucket, weir.FixedWindow, weir.SlidingCounter} {
		t.Run(algorithm.String(), func(t *testing.T) {
			now := time.Unix(1_700_000_040, 0) // in the middle of a minute
			rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
				{ID: "tokens", Algorithm: algorithm, Limits: []weir.Limit{weir.PerMinute(60)}, Book: true},
				{ID: "requests", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 100, Window: 24 * time.Hour}}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			l := weir.NewLimiter(memstore.New(memstore.Options{Now: func() time.Time { return now }}), rules, weir.Options{})
			ask := func(cost int64) weir.Decision {
				d, err := l.Check(context.Background(), &weir.Request{APIKey: "k", Cost: max(cost, 1), Peek: cost == 0})
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			left := func() int64 { d := ask(0); return d.Limits()[0].Remaining }
			if d := ask(90); !d.Allowed || d.Limits()[0].Remaining != 0 { // 30 below zero
				t.Errorf("%+v", d)
			}
			if d := ask(0); d.Allowed || d.Rule != "tokens" {
				t.Errorf("a peek below zero: %+v", d)
			}
			if d := ask(20); d.Allowed || d.Rule != "requests" { // requests refuses, and booked takes 20: 50 below zero
				t.Errorf("%+v", d)
			}
			if d := ask(10); !d.Allowed { // requests had 10 left: the refusal took nothing from it
				t.Errorf("%+v", d)
			}
			now = now.Add(59 * time.Second) // refills 59 of the 60 below zero
			if algorithm <= weir.LeakyBucket && left() != 0 {
				t.Errorf("%d left", left())
			}
			now = now.Add(time.Hour)
			if left() != 60 {
				t.Errorf("%d left", left())
			}
		})
	}
	for _, algorithm := range []counter.Algorithm{weir.SlidingLog, weir.LeakyQueue} {
		_, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "a", Algorithm: algorithm, Limits: []weir.Limit{weir.PerMinute(60)}, Book: true}}})
		if err == nil || !strings.Contains(err.Error(), "rules[0].past_limit: ") {
			t.Errorf("%s: %v", algorithm, err)
		}
	}
}
