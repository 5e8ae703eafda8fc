//go:build !race

package cooldown_test

import (
	"math"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/cooldown"
)

// A check of a client that isn't kept out costs no allocation, and neither does a refusal.
func TestAllocations(t *testing.T) {
	g := cooldown.New(cooldown.Options{})
	l := limiter(t, g,
		weir.Rule{ID: "api", Limits: limits(weir.PerMinute(10)), Abuse: abuseFor(3, time.Hour)},
		weir.Rule{ID: "other", By: []string{"user"}, Limits: limits(weir.Limit{Count: 1e9, Window: 24 * time.Hour}), Abuse: abuse(100)},
	)
	kept := &weir.Request{APIKey: "k"}
	for range 20 {
		check(t, l, kept)
	}
	for name, r := range map[string]*weir.Request{"refused": kept, "allowed": {APIKey: "a", User: "u"}} {
		ctx := t.Context()
		if n := testing.AllocsPerRun(1000, func() { _, _ = l.Check(ctx, r) }); math.Round(n) != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
