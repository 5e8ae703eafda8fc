package counter

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkSlidingLog measures the most that a client can ask of a long log: a refusal that computes when half of the log
// will have expired, and a token that is given back late.
func BenchmarkSlidingLog(b *testing.B) {
	for _, n := range []int64{100, 1_000_000} {
		p, err := NewPolicy("p", Limit{Algorithm: SlidingLog, Count: n, Window: time.Hour})
		if err != nil {
			b.Fatal(err)
		}
		var l Log
		now := midnight
		for range n {
			now++
			p.TryLog(&l, now, 1)
		}
		b.Run(fmt.Sprintf("refused/%d", n), func(b *testing.B) {
			for b.Loop() {
				if r := p.ReportLog(&l, now, n/2, Refused); r.RetryAfter <= 0 {
					b.Fatal(r)
				}
			}
		})
		b.Run(fmt.Sprintf("give-back/%d", n), func(b *testing.B) {
			for b.Loop() {
				p.ReturnLog(&l, now, 1, now-n/2)
			}
		})
	}
}
