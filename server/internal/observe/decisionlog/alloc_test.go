//go:build !race

package decisionlog

import (
	"io"
	"testing"
	"time"

	"github.com/weirhq/weir"
)

// A decision that is left out, or admitted and not sampled, allocates nothing.
func TestAllocsPerDecisionAreNone(t *testing.T) {
	b := newBed(t, start(io.Discard, "", Options{Sample: 1e-12}), weir.Rules{Rules: []weir.Rule{orders}})
	refused := &weir.Request{APIKey: "k", Method: "GET", Path: "/v1/orders/1"}
	free := &weir.Request{APIKey: "k", Method: "GET", Path: "/free"}
	for range 10 * perReason {
		b.check(*refused)
	}
	before := b.log.Stats().LeftOut
	if n := testing.AllocsPerRun(10_000, func() {
		_, _ = b.limiter.Check(t.Context(), refused)
		_, _ = b.limiter.Check(t.Context(), free)
	}); n != 0 {
		t.Errorf("%v allocations a decision", n)
	}
	if n := b.log.Stats().LeftOut - before; n < 9_000 {
		t.Errorf("%d decisions were left out", n)
	}
	if err := b.log.Close(time.Minute); err != nil {
		t.Error(err)
	}
}
