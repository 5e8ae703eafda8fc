package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/storetest"
)

// TestRememberedRefusalsAreTrue: what a client is told from memory is what the store would tell it, to the
// time of a round trip, however long the wait and however often the client comes back.
func TestRememberedRefusalsAreTrue(t *testing.T) {
	windows := []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour}
	for _, a := range leasing {
		for _, window := range windows {
			for _, every := range []time.Duration{time.Millisecond, 30 * time.Millisecond} { // without the lock, and with it
				t.Run(fmt.Sprint(a, window, every), func(t *testing.T) {
					bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
						p := storetest.Policy(t, "p", weir.Limit{Algorithm: a, Count: 100, Window: window})
						for take(s, charge(p, "s", 1))[0].Allowed {
							time.Sleep(time.Microsecond)
						}
						asked, remembered := f.asks.Load(), 0
						for i := range 200 {
							c := charge(p, "s", 1+int64(i%3))
							got := take(s, c)[0]
							if f.asks.Load() == asked && !got.Allowed {
								remembered++
								c.Peek = true
								truth(t, p, c.N, got, take(f.Lender, c)[0])
							}
							asked = f.asks.Load()
							time.Sleep(every)
						}
						if remembered < 20 && window > time.Second {
							t.Errorf("of 200 checks only %d were refused from memory", remembered)
						}
					})
				})
			}
		}
	}
}

// truth compares a refusal from memory with what the store says at the same moment. Memory may be late by a
// round trip and by what stretch adds, and never early.
func truth(t *testing.T, p *weir.Policy, n int64, got, want weir.Result) {
	t.Helper()
	const trip = 2 * time.Millisecond
	late := trip
	if a := p.Limit.Algorithm; a == weir.TokenBucket || a == weir.LeakyBucket {
		late += time.Duration(maxPause)
	}
	if wait := want.RetryAfter; got.RetryAfter < wait || got.RetryAfter > wait+late {
		t.Errorf("%d tokens: told to retry after %v, the store says %v", n, got.RetryAfter, wait)
	}
	if d := got.ResetAfter - want.ResetAfter; d < -trip || d > trip {
		t.Errorf("%d tokens: told that it is full again after %v, the store says %v", n, got.ResetAfter, want.ResetAfter)
	}
	if got.Remaining > want.Remaining {
		t.Errorf("%d tokens: told that %d remain, the store says %d", n, got.Remaining, want.Remaining)
	}
}
