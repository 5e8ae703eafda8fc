package weir_test

import (
	"context"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
)

// callCounter counts the calls of a store.
type callCounter struct {
	counter.Store
	takes, returns int
}

func (s *callCounter) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	s.takes++
	s.Store.Take(ctx, charges, results)
}

func (s *callCounter) GiveBack(ctx context.Context, once counter.Once, keep time.Duration, returns []counter.Return) error {
	s.returns++
	return s.Store.GiveBack(ctx, once, keep, returns)
}

// TestCheckTogether decides several requests in one call of the store. If one of them is refused, no tokens are taken, and
// none have to be given back.
func TestCheckTogether(t *testing.T) {
	set, err := weir.Compile(weir.Rules{
		Deny: []string{"sk_denied"}, Allow: []string{"sk_allowed"},
		Rules: []weir.Rule{
			{ID: "users", By: []string{"user"}, Missing: weir.MissingSkip, Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 2, Window: time.Hour}}},
			{ID: "orgs", By: []string{"org"}, Missing: weir.MissingSkip, Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 3, Window: time.Hour}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	store := &callCounter{Store: memstore.New(memstore.Options{})}
	var seen []weir.Decision
	l := weir.NewLimiter(store, set, weir.Options{Observe: func(o *weir.Observation) { seen = append(seen, *o.Decision) }})
	own, err := counter.NewPolicy("own", weir.Limit{Algorithm: weir.FixedWindow, Count: 4, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	user := func(name string) *weir.Request { return &weir.Request{User: name, Org: "acme", KeyVerified: true} }
	for i, c := range []struct {
		requests []*weir.Request
		allowed  bool
		reason   weir.Reason
		each     []bool
		left     int64 // in the edge's own limit
	}{
		{[]*weir.Request{user("a"), {User: "b"}}, true, weir.ReasonWithin, []bool{true, true}, 3},
		{[]*weir.Request{user("a"), {User: "b"}}, true, weir.ReasonWithin, []bool{true, true}, 2},
		{[]*weir.Request{user("c"), {User: "b"}}, false, weir.ReasonLimited, []bool{true, false}, 2},
		{[]*weir.Request{user("c")}, true, weir.ReasonWithin, []bool{true}, 1}, // the refused one took nothing
		{[]*weir.Request{user("d")}, false, weir.ReasonLimited, []bool{false}, 1},
		{[]*weir.Request{{User: "e"}, {APIKey: "sk_denied", KeyVerified: true}}, false, weir.ReasonDenied, []bool{true, false}, 1},
		{[]*weir.Request{{User: "e"}, {APIKey: "sk_allowed", KeyVerified: true}}, true, weir.ReasonWithin, []bool{true, true}, 0},
		{[]*weir.Request{{User: "e", Peek: true}}, false, weir.ReasonLimited, []bool{true}, 0}, // the edge's own limit refuses
	} {
		*store, seen = callCounter{Store: store.Store}, nil
		each := make([]weir.Decision, len(c.requests))
		d, err := private.CheckTogether(l, t.Context(), &weir.Request{}, []counter.Charge{{Counter: counter.Counter{Policy: own, Subject: []byte("x")}, N: 1}}, c.requests, each)
		if err != nil || d.Allowed != c.allowed || d.Reason != c.reason || d.Limits()[0].Remaining != c.left {
			t.Errorf("%d: %+v, %v", i, d, err)
		}
		for j, part := range each {
			if part.Allowed != c.each[j] {
				t.Errorf("%d: request %d: %+v", i, j, part)
			}
		}
		if store.takes != 1 || store.returns != 0 || len(seen) != 1 || seen[0].Allowed != c.allowed {
			t.Errorf("%d: %d takes, %d returns, and observers saw %+v", i, store.takes, store.returns, seen)
		}
	}
	empty := weir.NewLimiter(store, nil, weir.Options{})
	each := make([]weir.Decision, 1)
	if d, err := private.CheckTogether(empty, t.Context(), &weir.Request{}, nil, []*weir.Request{user("a")}, each); err != nil || d.Allowed || d.Reason != weir.ReasonUnavailable || each[0].Allowed {
		t.Errorf("without rules: %+v, %v", d, err)
	}
}
