package weir_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
)

// inUse counts slots by hold.
type inUse map[counter.Once]int64

func (u inUse) Slots(_ *counter.Counter, id counter.Once, n int64, lasts time.Duration) {
	if u[id] = n; lasts == 0 {
		delete(u, id)
	}
}

func (inUse) Reservation(string) {}

// An operator can release any slot in the list. If its request is still in flight, the next renewal takes the slot again,
// unless another request was faster.
func TestSlotsReleasedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
			{ID: "calls", Limits: []weir.Limit{weir.PerHour(100)}}, slots(1, 30*time.Second),
			{ID: "elsewhere", Match: weir.Match{Endpoint: "/elsewhere"}, Limits: []weir.Limit{weir.PerHour(100)}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		store, use := memstore.New(memstore.Options{}), inUse{}
		l := weir.NewLimiter(store, nil, weir.Options{Holds: use})
		req := weir.Request{APIKey: "k", Path: "/here", Method: "GET"}
		if all := private.Counters(l, &req); len(all) != 0 {
			t.Errorf("without rules: %v", all)
		}
		l.SetRules(rs)
		first := check(t, l, req)
		counters, limits := private.Counters(l, &req), first.Limits()
		if len(counters) != 2 || !slices.EqualFunc(counters, limits, func(c counter.Counter, s weir.LimitStatus) bool { return c.Policy == s.Policy }) {
			t.Fatalf("%v, want the counters of %v", counters, limits)
		}
		release := func() {
			t.Helper()
			var back []counter.Return
			if err := store.Slots(t.Context(), &counters[1], 10, func(id counter.Once, n int64, _, _ time.Time) {
				back = append(back, counter.Return{Counter: counters[1], N: n, Hold: &counter.Hold{ID: id}})
			}); err != nil || len(back) != 1 {
				t.Fatal(back, err)
			}
			if err := private.GiveBack(l, t.Context(), back); err != nil || len(use) != 0 {
				t.Fatal(err, use)
			}
		}
		release()
		if err := l.Renew(t.Context(), &first); err != nil || len(use) != 1 {
			t.Errorf("one is free, and it isn't taken: %v, %v", err, use)
		}
		release()
		second := check(t, l, req)
		if err := l.Renew(t.Context(), &first); !second.Allowed || !errors.Is(err, weir.ErrSlotLost) {
			t.Errorf("others have taken it: %v", err)
		}
		// The end of the first request doesn't release the second one's slot.
		if err := l.Finish(t.Context(), &first, weir.Outcome{}); err != nil || check(t, l, req).Allowed {
			t.Errorf("a slot was released twice: %v", err)
		}
	})
}
