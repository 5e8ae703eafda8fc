//go:build !race

package serve

import (
	"path/filepath"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/server/internal/observe/decisionlog"
)

// TestAllocsWithAllObserversAreNone checks that an admitted request allocates nothing with all observers. It runs
// without the race detector, which causes allocations of its own.
func TestAllocsWithAllObserversAreNone(t *testing.T) {
	log, err := decisionlog.Open(filepath.Join(t.TempDir(), "decisions"), decisionlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close(closing)
	l := recording(t, func(n *node) func(*weir.Observation) {
		n.decided = log
		return n.observe
	})
	req := &weir.Request{APIKey: "sk_prod_00000000", Method: "GET", Path: "/v1/orders"}
	if got := testing.AllocsPerRun(100_000, func() { _, _ = l.Check(t.Context(), req) }); got != 0 {
		t.Errorf("%v allocations a check", got)
	}
}
