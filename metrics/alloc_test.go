//go:build !race

// The race detector allocates by itself, so these run without it.

package metrics_test

import (
	"testing"

	"github.com/weirhq/weir"
)

func TestAllocsPerDecisionAreNone(t *testing.T) {
	b := inMemory(t,
		weir.Rule{ID: "api", Limits: limit(100), Candidate: limit(10)},
		weir.Rule{ID: "ip", By: []string{"ip", "endpoint"}, Limits: []weir.Limit{weir.PerMinute(1_000_000)}},
	)
	req := &weir.Request{Edge: "check", APIKey: "sk_prod_1", Method: "GET", Path: "/v1/orders/17"}
	check := func() {
		if _, err := b.limiter.Check(t.Context(), req); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		when string
		runs int
	}{{"allowed", 50}, {"refused", 10_000}} {
		if got := testing.AllocsPerRun(c.runs, check); got != 0 {
			t.Errorf("%v allocations a check, %s", got, c.when)
		}
	}
}
