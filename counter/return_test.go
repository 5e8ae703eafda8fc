package counter

import (
	"testing"
	"time"
)

// A receipt holds the limit's numbers at the time of the charge. A refund by that receipt must not refill the
// bucket by those old numbers.
func TestReturnUnderOlderNumbers(t *testing.T) {
	const hour = int64(time.Hour / time.Microsecond)
	for _, a := range []Algorithm{TokenBucket, LeakyBucket} {
		quick, err := NewPolicy("p", Limit{Algorithm: a, Count: 1000, Window: time.Second, Burst: 10})
		if err != nil {
			t.Fatal(err)
		}
		slow, err := NewPolicy("p", Limit{Algorithm: a, Count: 10, Window: 10 * time.Hour, Burst: 10})
		if err != nil {
			t.Fatal(err)
		}
		now := 1000 * hour
		used, ok := slow.Try(State{}, now, 10)
		if !ok {
			t.Fatal("a full bucket refused")
		}
		if got := slow.Level(quick.Return(used, now+hour/2, 1, 0), now+hour) / micro; got != 2 {
			t.Errorf("%v: lowered since: %d after one was given back, not 2", a, got)
		}
		used, _ = quick.Try(State{}, now, 10)
		if got := quick.Level(slow.Return(used, now+5000, 1, 0), now+5000) / micro; got != 6 {
			t.Errorf("%v: raised since: %d after one was given back, not 6", a, got)
		}
	}
}
