package report

import (
	"math"
	"slices"
)

// Spread is a few measurements of one thing.
type Spread struct{ Median, Low, High float64 }

// MiddleOf is the median, with the quartiles in place of the extremes: for many measurements, of which some went wrong.
func MiddleOf(xs []float64) Spread {
	xs = slices.DeleteFunc(slices.Clone(xs), math.IsNaN)
	s := SpreadOf(xs)
	if n := len(xs); n > 0 {
		slices.Sort(xs)
		s.Low, s.High = xs[n/4], xs[n-1-n/4]
	}
	return s
}

// SpreadOf ignores what isn't a number. The median of an even count is the mean of the middle two.
func SpreadOf(xs []float64) Spread {
	xs = slices.DeleteFunc(slices.Clone(xs), math.IsNaN)
	if len(xs) == 0 {
		return Spread{math.NaN(), math.NaN(), math.NaN()}
	}
	slices.Sort(xs)
	n := len(xs)
	return Spread{(xs[(n-1)/2] + xs[n/2]) / 2, xs[0], xs[n-1]}
}

// Range is [low–high], or nothing if it is unknown.
func (s Spread) Range(digits int) string {
	if math.IsNaN(s.Median) {
		return ""
	}
	return "[" + Number(s.Low, digits) + "–" + Number(s.High, digits) + "]"
}
