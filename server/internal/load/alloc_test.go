//go:build !race

// These tests run without the race detector, which causes allocations of its own.

package load

import (
	"testing"
	"time"
)

func TestAllocsPerCheckAreNone(t *testing.T) {
	set, err := GenerousRules()
	if err != nil {
		t.Fatal(err)
	}
	r := &run{plan: Plan{Workers: 1, Keys: 1000}, sample: InProcessSample, start: time.Now()}
	w := r.workers(inProcess(t, set, 1000, Check{KeyPrefix: "bench_", Path: "/{n}", Cost: 1}))[0]
	ctx := t.Context()
	if got := testing.AllocsPerRun(1000, func() { w.batch(ctx, 0, true) }); got != 0 {
		t.Errorf("%v allocations for %d checks", got, InProcessSample)
	}
}
