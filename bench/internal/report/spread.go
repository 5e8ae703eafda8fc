package report

import (
	"math"
	"slices"
)

// Spread is the median of a few measurements of one thing, and how far they lie apart.
type Spread struct{ Median, Low, High float64 }

// extremes is up to how many measurements Low and High are the extremes. Of more they are the quartiles, since some of many
// measurements always go wrong.
const extremes = 5

// SpreadOf ignores NaN. The median of an even number of measurements is the mean of the middle two.
func SpreadOf(xs []float64) Spread {
	xs = slices.DeleteFunc(slices.Clone(xs), math.IsNaN)
	n := len(xs)
	if n == 0 {
		return Spread{math.NaN(), math.NaN(), math.NaN()}
	}
	slices.Sort(xs)
	s := Spread{(xs[(n-1)/2] + xs[n/2]) / 2, xs[0], xs[n-1]}
	if n > extremes {
		s.Low, s.High = xs[n/4], xs[n-1-n/4]
	}
	return s
}

// Range is [low–high], or nothing if it is unknown.
func (s Spread) Range(digits int) string {
	if math.IsNaN(s.Median) {
		return ""
	}
	return "[" + Number(s.Low, digits) + "–" + Number(s.High, digits) + "]"
}
