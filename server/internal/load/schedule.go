package load

import (
	"math/rand/v2"
	"time"
)

// schedule says when the requests of an open loop are due, counted from the start. It doesn't look at the clock, so it
// doesn't depend on answers.
type schedule struct {
	rate float64    // requests a second
	n    int64      // evenly spaced: number of requests so far
	rng  *rand.Rand // Poisson; nil means evenly spaced
	last float64    // Poisson: when the last request was due, in seconds
}

func newSchedule(rate float64, poisson bool) schedule {
	s := schedule{rate: rate}
	if poisson {
		s.rng = rand.New(rand.NewPCG(2, 3))
	}
	return s
}

// next is when the next request is due. Times never decrease.
func (s *schedule) next() time.Duration {
	if s.rng != nil {
		s.last += s.rng.ExpFloat64() / s.rate
		return time.Duration(s.last * float64(time.Second))
	}
	// Not a sum of rounded intervals, which would drift.
	due := time.Duration(float64(s.n) / s.rate * float64(time.Second))
	s.n++
	return due
}
