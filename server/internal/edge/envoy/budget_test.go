package envoy_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// silent is a store that never answers. Its calls end with their context.
type silent struct{ counter.Store }

func (silent) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	<-ctx.Done()
	for i := range charges {
		results[i] = counter.Result{Err: ctx.Err()}
	}
}

func (silent) GiveBack(ctx context.Context, _ counter.Once, _ time.Duration, _ []counter.Return) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestTheStoresTime checks that all store calls of a request together get the caller's deadline less a margin, and
// without a deadline less than Envoy's default timeout of 20 ms.
func TestTheStoresTime(t *testing.T) {
	const file = "domain: d\ndescriptors:\n  - {key: k, rate_limit: {unit: day, requests_per_unit: 1}}\n"
	for _, descriptors := range [][]string{{"k=1"}, {"back k=1"}, {"k=1", "back k=2"}} {
		for patience, want := range map[time.Duration]time.Duration{
			0:                     15 * time.Millisecond,
			2 * time.Millisecond:  time.Millisecond,
			5 * time.Millisecond:  3 * time.Millisecond,
			12 * time.Millisecond: 9 * time.Millisecond,
			20 * time.Millisecond: 15 * time.Millisecond,
			50 * time.Millisecond: 45 * time.Millisecond,
			time.Second:           995 * time.Millisecond,
		} {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t, silent{memstore.New(memstore.Options{})}, envoy.Options{}, envoy.File{Name: "f.yaml", Text: []byte(file)})
				ctx, cancel := t.Context(), func() {}
				if patience > 0 {
					ctx, cancel = context.WithTimeout(ctx, patience)
				}
				defer cancel()
				begun := time.Now()
				got, err := s.ShouldRateLimit(ctx, request("d", descriptors...))
				if took := time.Since(begun); err != nil || brief(got)[:2] != "OK" || took != want {
					t.Errorf("%q, a deadline of %s: %v %v after %s, want OK after %s", descriptors, patience, got, err, took, want)
				}
			})
		}
	}
}

// TestTheStoresTimeOnABusyNode checks that without a deadline from the caller, the store's time doesn't run out before every
// runnable goroutine, such as one that reads replies, has had several turns, however long the turns take.
func TestTheStoresTimeOnABusyNode(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var stop atomic.Bool
	defer stop.Store(true)
	turns := make([]atomic.Int64, 40)
	for i := range turns {
		go func() {
			for !stop.Load() {
				for begun := time.Now(); time.Since(begun) < time.Millisecond; {
				}
				turns[i].Add(1)
				runtime.Gosched()
			}
		}()
	}
	ctx, end := envoy.WithBudget(t.Context())
	defer end()
	<-ctx.Done()
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Error(ctx.Err())
	}
	all := int64(0)
	for i := range turns {
		n := turns[i].Load()
		if all += n; n == 0 {
			t.Errorf("the time is up, and goroutine %d has had no turn", i)
		}
	}
	// On a busy machine, a turn is sometimes cut in two, so not every turn is counted.
	if many := int64(len(turns)); all < 2*many {
		t.Errorf("the time is up, and %d goroutines have had %d turns", many, all)
	}
}
