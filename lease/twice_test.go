package lease

import (
	"testing"

	"github.com/weirhq/weir/counter"
)

// TestOneCounterTwice checks that a call that names a counter twice is charged the sum or nothing, whether or not the node
// holds tokens, and that its refusal isn't taken for one of either charge.
func TestOneCounterTwice(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Store, f *far) {
		for _, held := range []bool{false, true} {
			subject, left := "cold", int64(1000)
			p := perDay(t, 1000)
			if held {
				subject, left = "held", 900
				warm(t, s, p, subject)
			}
			for range 3 {
				for _, r := range take(s, charge(p, subject, 600), charge(p, subject, 500)) {
					if r.Allowed || r.RetryAfter != counter.Never {
						t.Fatalf("%s: 600 and 500 of 1000: %+v", subject, r)
					}
				}
			}
			if r := take(s, charge(p, subject, 600))[0]; !r.Allowed {
				t.Fatalf("%s: 600 of %d: %+v", subject, left, r)
			}
			left -= 600
			for _, n := range []int64{50, 30, 10, 1} { // the store may lend the node at most three quarters of what it has
				for {
					rs := take(s, charge(p, subject, n), charge(p, subject, n))
					if rs[0].Allowed != rs[1].Allowed {
						t.Fatalf("%s: one half of a request was refused: %+v", subject, rs)
					}
					if !rs[0].Allowed {
						break
					}
					left -= 2 * n
				}
			}
			for take(s, charge(p, subject, 1))[0].Allowed {
				left--
			}
			if left < -1 || left > 0 { // a token refills in 86 s of this day
				t.Fatalf("%s: %d tokens of 1000 are left when all is refused", subject, left)
			}
		}
	})
}
