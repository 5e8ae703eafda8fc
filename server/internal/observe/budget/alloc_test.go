//go:build !race

package budget_test

import (
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/observe/budget"
)

// TestAllocsOfReportedBudgetsAreNone checks that a check of a budget whose threshold was reported allocates nothing. It
// runs without the race detector, which causes allocations of its own.
func TestAllocsOfReportedBudgetsAreNone(t *testing.T) {
	store := memstore.New(memstore.Options{})
	calls := weir.Rule{ID: "calls", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 1000, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month}}}}
	n := open(t, store, budget.Options{}, calls)
	defer n.watcher.Close(time.Second)
	req := &weir.Request{APIKey: spendKey}
	for range 600 { // more than half of the budget
		_, _ = n.Check(t.Context(), req)
	}
	if got := testing.AllocsPerRun(100, func() { _, _ = n.Check(t.Context(), req) }); got != 0 {
		t.Errorf("%v allocations a check", got)
	}
}
