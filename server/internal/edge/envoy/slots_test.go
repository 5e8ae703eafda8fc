package envoy_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// standing returns the codes of a response, and what is left.
func standing(a *rls.RateLimitResponse) string {
	out := a.GetOverallCode().String()
	for _, st := range a.GetStatuses() {
		out += fmt.Sprintf(" %s-%d", st.GetCode(), st.GetLimitRemaining())
	}
	return out
}

// TestSlots checks that slots of a concurrency rule expire, or become free when hits are given back. The protocol has
// no end of a request and no receipts.
func TestSlots(t *testing.T) {
	const rules = `
rules:
  - {id: flight, by: ["attr:tenant"], missing: skip, algorithm: concurrency, limit: 2, slot_ttl: 10s}
  - {id: users, by: [user], missing: skip, algorithm: fixed_window, limit: 1/day}
`
	synctest.Test(t, func(t *testing.T) {
		s := byRules(t, rules, envoy.Options{})
		for i, c := range []struct {
			after     time.Duration
			ask, want string
		}{
			{0, "tenant=x", "OK OK-1"},
			{time.Second, "tenant=x", "OK OK-0"},
			{0, "tenant=x", "OVER_LIMIT OVER_LIMIT-0"},
			{0, "hits=0 tenant=x", "OVER_LIMIT OVER_LIMIT-0"},
			{0, "tenant=y", "OK OK-1"},      // the other tenant has its own slots
			{0, "back tenant=x", "OK OK-0"}, // gives back the oldest slot, because the protocol can't say which
			{0, "tenant=x", "OK OK-0"},
			{0, "tenant=x", "OVER_LIMIT OVER_LIMIT-0"},
			{9 * time.Second, "tenant=x", "OVER_LIMIT OVER_LIMIT-0"}, // the slot that was given back would have expired now
			{time.Second, "hits=2 tenant=x", "OK OK-0"},              // the other two have expired
			{0, "hits=2 back tenant=x", "OK OK-0"},
			{0, "hits=2 tenant=x", "OK OK-0"},
			{0, "tenant=x", "OVER_LIMIT OVER_LIMIT-0"},
			{10 * time.Second, "hits=2 tenant=x", "OK OK-0"},
			{10 * time.Second, "hits=0 tenant=x", "OK OK-2"},  // all slots have expired
			{0, "hits=3 tenant=x", "OVER_LIMIT OVER_LIMIT-0"}, // three never fit
			{0, "user=ann", "OK OK-0"},
			{0, "tenant=x; tenant=z user=ann", "OVER_LIMIT OK-2 OVER_LIMIT-0"}, // takes no slots, because the second descriptor is refused
			{0, "hits=0 tenant=x", "OK OK-2"},
			{0, "hits=0 tenant=z", "OK OK-2"},
		} {
			time.Sleep(c.after)
			got, err := s.ShouldRateLimit(t.Context(), request("edge", strings.Split(c.ask, ";")...))
			if err != nil {
				t.Fatal(err)
			}
			if c.want != standing(got) {
				t.Errorf("%d: %s: got %s, want %s", i, c.ask, standing(got), c.want)
			}
		}
		got, err := s.ShouldRateLimit(t.Context(), request("edge", "hits=2 tenant=x"))
		if err != nil || header(got, "X-Ratelimit-Limit") != "2" {
			t.Errorf("%v %v", got.GetResponseHeadersToAdd(), err)
		}
		got, err = s.ShouldRateLimit(t.Context(), request("edge", "tenant=x"))
		st := got.GetStatuses()[0]
		if err != nil || header(got, "Retry-After") == "" || st.GetDurationUntilReset().GetSeconds() != 10 || st.CurrentLimit != nil ||
			!strings.Contains(string(got.GetRawBody()), "Limit of 2 requests at a time exceeded") {
			t.Errorf("%v %v", got, err)
		}
	})
}
