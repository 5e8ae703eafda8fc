//go:build !race

package tail_test

import (
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/server/internal/observe/tail"
)

// A decision that no viewer is shown allocates nothing, whatever viewers watch. This runs without the race detector,
// which causes allocations of its own.
func TestAllocsOfUnshownDecisionsAreNone(t *testing.T) {
	l, h := open(t)
	req := &weir.Request{APIKey: "sk_a", IP: home, Path: "/"}
	for range 2 {
		watch(t, h, tail.Filter{Client: 7, ByClient: true})
		watch(t, h, tail.Filter{Rule: "none"})
	}
	v := watch(t, h, tail.Filter{})
	check(t, l, 2*tail.PerSecond, *req) // no more are shown until the next pulse
	if got := testing.AllocsPerRun(1000, func() { _, _ = l.Check(t.Context(), req) }); got != 0 {
		t.Errorf("%v allocations a check", got)
	}
	if v.Pulse().Seen < 1000 {
		t.Error("nothing was seen")
	}
}
