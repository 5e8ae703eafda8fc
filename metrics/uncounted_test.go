package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/metrics"
)

// away is a store that can't be reached.
type away struct{ counter.Store }

func (away) Take(_ context.Context, charges []counter.Charge, results []counter.Result) {
	for i := range charges {
		results[i] = counter.Result{Err: errors.New("away")}
	}
}

// TestUncounted checks that operators see how many requests were allowed uncounted, and an estimate of the number of
// their keys, until five minutes after the last one. Refused requests don't count.
func TestUncounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, away{}, weir.Options{}, weir.Rules{Rules: []weir.Rule{
			{ID: "open", Limits: limit(5)},
			{ID: "address", By: []string{"ip"}, Limits: limit(5)},
			{ID: "closed", Match: weir.Match{Endpoint: "/closed"}, Limits: limit(5), OnStoreFailure: weir.FailRefuse},
		}})
		want := func(requests, keys float64) {
			t.Helper()
			all := b.series()
			if got := all["weir_uncounted_requests{}"].GetGauge().GetValue(); got != requests {
				t.Errorf("%v requests, want %v", got, requests)
			}
			if got := all["weir_uncounted_keys{}"].GetGauge().GetValue(); math.Abs(got-keys) > keys/6 { // five standard errors
				t.Errorf("%v keys, want about %v", got, keys)
			}
		}
		send := func(key, path string) {
			b.limiter.Check(t.Context(), &weir.Request{APIKey: key, Path: path, IP: netip.MustParseAddr("203.0.113.7")})
		}
		want(0, 0)
		send("sk_1", "/closed")
		want(0, 0)
		send("sk_1", "/")
		want(1, 1)
		for i := range 20_000 {
			send(fmt.Sprint("sk_", i%10_000), "/")
		}
		want(20_001, 10_000)
		time.Sleep(4 * time.Minute)
		send("sk_1", "/")
		time.Sleep(4 * time.Minute)
		want(20_002, 10_000)
		time.Sleep(2 * time.Minute)
		want(0, 0)
		send("sk_1", "/")
		want(1, 1)
	})
}

// TestRuleInfo checks that each rule has one series, which shows what it counts by.
func TestRuleInfo(t *testing.T) {
	b := inMemory(t,
		weir.Rule{ID: "orders", Match: weir.Match{Endpoint: "GET /orders"}, Algorithm: weir.SlidingLog, Limits: limit(5)},
		weir.Rule{ID: "all", Limits: limit(5)},
	)
	b.metrics.Watch(metrics.Sources{Limiter: b.limiter})
	b.want("weir_rule_info", map[string]float64{
		`weir_rule_info{algorithm="sliding_window_log",endpoint="GET /orders",rule="orders"}`: 1,
		`weir_rule_info{algorithm="token_bucket",endpoint="",rule="all"}`:                     1,
	})
}
