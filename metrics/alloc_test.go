//go:build !race

// The race detector makes allocations of its own, and takes a minute for a million clients. So these tests run without
// it.

package metrics_test

import (
	"fmt"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/metrics"
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

// TestAMillionClients checks that the number of series depends on the rules, not on what clients send.
func TestAMillionClients(t *testing.T) {
	b := inMemory(t, weir.Rule{ID: "orders", By: []string{"api_key", "ip", "path"}, Limits: limit(1)})
	b.metrics.Watch(metrics.Sources{Limiter: b.limiter})
	for i := range 1_000_000 {
		key := fmt.Sprint("sk_", i)
		b.check(weir.Request{Edge: key, APIKey: key, User: key, Method: key, Path: "/" + key})
	}
	if n := len(b.series()); n > 10 {
		t.Errorf("%d series after a million clients", n)
	}
}
