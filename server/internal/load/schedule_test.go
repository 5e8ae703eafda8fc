package load

import (
	"math"
	"testing"
	"time"
)

func TestEvenScheduleDoesNotDrift(t *testing.T) {
	for _, rate := range []float64{0.5, 3, 1000, 7777.7, 1e6} {
		s := newSchedule(rate, false)
		const n = 100_000
		var last time.Duration
		for range n + 1 {
			due := s.next()
			if due < last {
				t.Fatalf("at %v/s, %s comes after %s", rate, due, last)
			}
			last = due
		}
		if want := n / rate * 1e9; math.Abs(float64(last)-want) > 1 {
			t.Errorf("at %v/s request %d is due at %s, want %.0fns", rate, n, last, want)
		}
	}
}

// In a Poisson process, the times between requests have a mean of 1/rate, and a standard deviation of the same size.
func TestPoissonSchedule(t *testing.T) {
	const rate, n = 1000.0, 200_000
	s := newSchedule(rate, true)
	var last time.Duration
	var sum, squares float64
	for range n {
		due := s.next()
		gap := (due - last).Seconds() * rate
		last = due
		if gap < 0 {
			t.Fatal("time runs backwards")
		}
		sum += gap
		squares += gap * gap
	}
	mean := sum / n
	deviation := math.Sqrt(squares/n - mean*mean)
	if math.Abs(mean-1) > 0.02 || math.Abs(deviation-1) > 0.02 {
		t.Errorf("mean %.3f and deviation %.3f, want 1 and 1", mean, deviation)
	}
}
