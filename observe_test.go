package weir_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
)

func TestObserverSeesEveryDecision(t *testing.T) {
	var seen []weir.Reason
	var asked []string
	rs := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", Match: weir.Match{Endpoint: "/a"}, Limits: per(1, time.Hour)}}, Deny: []string{"bad"}})
	l := weir.NewLimiter(memstore.New(memstore.Options{}), rs, weir.Options{Observe: func(o *weir.Observation) {
		seen, asked = append(seen, o.Decision.Reason), append(asked, o.Request.Path+o.Request.APIKey)
		if o.Err != nil {
			t.Error(o.Err)
		}
	}})
	for _, req := range []weir.Request{{Path: "/a"}, {Path: "/a"}, {Path: "/b"}, {APIKey: "bad"}} {
		check(t, l, req)
	}
	want := []weir.Reason{weir.ReasonWithin, weir.ReasonLimited, weir.ReasonUnlimited, weir.ReasonDenied}
	if !slices.Equal(seen, want) {
		t.Errorf("saw %v, want %v", seen, want)
	}
	if want := []string{"/a", "/a", "/b", "bad"}; !slices.Equal(asked, want) {
		t.Errorf("saw requests %v, want %v", asked, want)
	}
}

// slowStore answers slowly.
type slowStore struct {
	counter.Store
	time.Duration
}

func (s slowStore) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	time.Sleep(s.Duration)
	s.Store.Take(ctx, charges, results)
}

func TestObserverIsToldOfTimeAndFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := &brokenStore{Store: memstore.New(memstore.Options{})}
		var seen weir.Observation
		rs := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: per(1, time.Hour)}}})
		l := weir.NewLimiter(slowStore{broken, 7 * time.Millisecond}, rs, weir.Options{Observe: func(o *weir.Observation) { seen = *o }})
		check(t, l, weir.Request{})
		if seen.Err != nil {
			t.Error(seen.Err)
		}
		broken.fails = []string{"a"}
		own := []counter.Charge{charge(ownPolicy(t, "a", 1, weir.FailAllow), "s", 1)}
		const n = 4000
		timed := 0
		for i := range n {
			if i%2 == 0 {
				_, _ = l.Check(t.Context(), &weir.Request{})
			} else {
				_, _ = private.Take(l, t.Context(), &weir.Request{}, own, nil)
			}
			switch {
			case !errors.Is(seen.Err, errGone):
				t.Fatalf("observation %d: %v", i, seen.Err)
			case seen.Took == 7*time.Millisecond:
				timed++
			case seen.Took != 0:
				t.Fatalf("observation %d took %v", i, seen.Took)
			}
		}
		// One decision in 64 is timed, chosen at random.
		if timed < n/64/3 || timed > n/64*3 {
			t.Errorf("%d of %d observations were timed", timed, n)
		}
		_, _ = private.Take(l, t.Context(), &weir.Request{}, nil, nil)
		if seen.Err != nil || seen.Took != 0 {
			t.Errorf("a take of nothing: %+v", seen)
		}
	})
}

// TestObserverIsToldByEdges: the observer sees decisions that an edge makes by itself, and which edge asked.
func TestObserverIsToldByEdges(t *testing.T) {
	var seen []string
	l := weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, weir.Rules{}), weir.Options{Observe: func(o *weir.Observation) {
		seen = append(seen, fmt.Sprint(o.Request.Edge, " ", o.Decision.Reason, " ", o.Decision.Rule))
	}})
	private.Tell(l, t.Context(), &weir.Request{Edge: "http"}, weir.Decision{Reason: weir.ReasonOverloaded, Rule: "queue"})
	check(t, l, weir.Request{})
	if want := []string{"http overloaded queue", " unlimited "}; !slices.Equal(seen, want) {
		t.Errorf("saw %q, want %q", seen, want)
	}
	private.Tell(weir.NewLimiter(memstore.New(memstore.Options{}), nil, weir.Options{}), t.Context(), &weir.Request{}, weir.Decision{}) // nobody listens
}
