package compare

import (
	"math"
	"testing"
	"time"

	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/internal/load"
)

// row returns a row whose samples have these times per check, in nanoseconds.
func row(ns ...float64) *Row {
	r := &Row{}
	for _, x := range ns {
		s := Sample{Report: &load.Report{Checks: 1, Allowed: 1, Seconds: x / 1e9}}
		s.Latency.P50 = time.Duration(x)
		r.Samples = append(r.Samples, s)
	}
	return r
}

func near(a, b report.Spread) bool {
	return math.Abs(a.Median-b.Median)+math.Abs(a.Low-b.Low)+math.Abs(a.High-b.High) < 1e-9
}

// The machine was three times slower in the second round, which must not affect any ratio.
func TestRatioIsWithinRounds(t *testing.T) {
	base, r := row(100, 300, 110), row(50, 150, 66)
	if got := r.Ratio(base, Nanoseconds); !near(got, report.Spread{Median: 0.5, Low: 0.5, High: 0.6}) {
		t.Errorf("got %v", got)
	}
	if got := r.Ratio(nil, Nanoseconds); !math.IsNaN(got.Median) {
		t.Errorf("the ratio without a base is %v, want NaN", got)
	}
}

func TestDisturbedSamplesAreTheLastResort(t *testing.T) {
	base, r := row(100, 100), row(900, 50)
	r.Samples[0].Others = 0.5
	if got := r.Ratio(base, Nanoseconds); math.Abs(got.High-0.5) > 1e-9 {
		t.Errorf("ratio %v, want only 0.5", got)
	}
	if got := r.Spread(Nanoseconds); math.Abs(got.High-50) > 1e-9 {
		t.Errorf("ns %v, want only 50", got)
	}
	r.Samples = r.Samples[:1]
	if got := r.Ratio(base, Nanoseconds); math.Abs(got.Median-9) > 1e-9 {
		t.Errorf("ratio %v, want 9", got)
	}
}

// Samples with unexpected answers are never used. Disturbed samples are used only if there are no others.
func TestUnexpectedAnswersNeverCount(t *testing.T) {
	base, r := row(10, 30, 10, 10), row(20, 60, 1, 90)
	r.Samples[2].Errors, r.Samples[3].Others = 5, 0.5
	if got := r.Ratio(base, P50); !near(got, report.Spread{Median: 2, Low: 2, High: 2}) {
		t.Errorf("got %v, want only 2", got)
	}
	r.Samples = r.Samples[2:]
	base.Samples = base.Samples[2:]
	if got := r.Ratio(base, P50); !near(got, report.Spread{Median: 9, Low: 9, High: 9}) {
		t.Errorf("got %v, want only 9", got)
	}
	r.Samples = r.Samples[:1]
	if got := r.Ratio(base, P50); !math.IsNaN(got.Median) {
		t.Errorf("the ratio of failed samples is %v, want NaN", got)
	}
	if got := r.Ratio(nil, P50); !math.IsNaN(got.Median) {
		t.Errorf("the ratio without a base is %v, want NaN", got)
	}
}
