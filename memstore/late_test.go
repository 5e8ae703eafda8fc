package memstore_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/storetest"
)

// TestLateChecksMintNothing: if a check is delayed after it reads the clock, other checks may update the counter to a later time
// first. The late check must not make the counter refill for the same time twice.
func TestLateChecksMintNothing(t *testing.T) {
	for _, a := range storetest.Algorithms {
		for _, late := range []string{"take", "layers", "peek", "return", "held", "settled"} {
			t.Run(fmt.Sprint(a, "/", late), func(t *testing.T) {
				var now atomic.Int64
				now.Store(storetest.Start.Truncate(time.Second).UnixMicro())
				var meanwhile atomic.Pointer[func()]
				var others sync.WaitGroup
				s := memstore.New(memstore.Options{Now: func() time.Time {
					at := time.UnixMicro(now.Load())
					if f := meanwhile.Swap(nil); f != nil {
						var done atomic.Bool
						others.Go(func() { (*f)(); done.Store(true) })
						for i := 0; i < 10_000 && !done.Load(); i++ { // unless the counter is locked, and it has to wait
							runtime.Gosched()
						}
					}
					return at
				}})
				counted := counter.Counter{Policy: storetest.Policy(t, "a", counter.Limit{Algorithm: a, Count: 100, Window: time.Second}), Subject: []byte("k")}
				other := counter.Counter{Policy: storetest.Policy(t, "b", counter.PerHour(1_000_000)), Subject: []byte("k")}
				take := func(charges ...counter.Charge) counter.Result {
					results := make([]counter.Result, len(charges))
					s.Take(t.Context(), charges, results)
					return results[0]
				}
				all := counter.Charge{Counter: counted, N: 100}
				if !take(all).Allowed {
					t.Fatal("a full limit refuses")
				}
				ahead := func() {
					now.Add(2e6)
					if !take(all).Allowed {
						t.Error("it isn't full again")
					}
				}
				meanwhile.Store(&ahead)
				switch one := (counter.Charge{Counter: counted, N: 1, Peek: late == "peek"}); late {
				case "return":
					if err := s.GiveBack(t.Context(), counter.Once{}, 0, []counter.Return{{Counter: counted, N: 1, Slot: 1}}); err != nil {
						t.Fatal(err)
					}
				case "settled":
					back := []counter.Return{{Counter: counted, N: 1, Slot: 1, Hold: &counter.Hold{ID: counter.Once{1}}}}
					if err := s.GiveBack(t.Context(), counter.Once{}, 0, back); err != nil {
						t.Fatal(err)
					}
				case "held":
					one.Hold = &counter.Hold{ID: counter.Once{1}, For: time.Minute}
					take(one)
				case "layers":
					take(one, counter.Charge{Counter: other, N: 1})
				default:
					take(one)
				}
				others.Wait()
				if r := take(counter.Charge{Counter: counted, N: 1}); r.Allowed {
					t.Errorf("time was counted twice: %+v", r)
				}
			})
		}
	}
}
