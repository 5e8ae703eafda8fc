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

// standing is the codes of an answer, and what is left.
func standing(a *rls.RateLimitResponse) string {
	out := a.GetOverallCode().String()
	for _, st := range a.GetStatuses() {
		out += fmt.Sprintf(" %s-%d", st.GetCode(), st.GetLimitRemaining())
	}
	return out
}

// TestSlots of a rule with algorithm: concurrency end by themselves, or when hits are given back: the protocol has no end of a request, and nobody has
// a receipt.
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
			{0, "tenant=y", "OK OK-1"},      // its own
			{0, "back tenant=x", "OK OK-0"}, // whose slot, nobody knows: that of the first
			{0, "tenant=x", "OK OK-0"},
			{0, "tenant=x", "OVER_LIMIT OVER_LIMIT-0"},
			{9 * time.Second, "tenant=x", "OVER_LIMIT OVER_LIMIT-0"}, // the first would have ended
			{time.Second, "hits=2 tenant=x", "OK OK-0"},              // the others have
			{0, "hits=2 back tenant=x", "OK OK-0"},
			{0, "hits=2 tenant=x", "OK OK-0"},
			{0, "tenant=x", "OVER_LIMIT OVER_LIMIT-0"},
			{10 * time.Second, "hits=2 tenant=x", "OK OK-0"},
			{10 * time.Second, "hits=0 tenant=x", "OK OK-2"},  // all are
			{0, "hits=3 tenant=x", "OVER_LIMIT OVER_LIMIT-0"}, // which is never
			{0, "user=ann", "OK OK-0"},
			{0, "tenant=x; tenant=z user=ann", "OVER_LIMIT OK-2 OVER_LIMIT-0"}, // the first takes no slot
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
