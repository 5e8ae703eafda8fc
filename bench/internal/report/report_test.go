package report

import (
	"math"
	"testing"
)

func TestSpread(t *testing.T) {
	if got := SpreadOf([]float64{4, 1, math.NaN(), 3, 2}); got != (Spread{2.5, 1, 4}) {
		t.Errorf("got %v", got)
	}
}

func TestSpreadOfMany(t *testing.T) {
	if got := SpreadOf([]float64{900, 4, 1, math.NaN(), 3, 2, 5, 6}); got != (Spread{4, 2, 6}) {
		t.Errorf("got %v", got)
	}
	if got := SpreadOf([]float64{7}); got != (Spread{7, 7, 7}) {
		t.Errorf("got %v", got)
	}
	if got := SpreadOf(nil); !math.IsNaN(got.Low) {
		t.Errorf("got %v", got)
	}
}

func TestAmount(t *testing.T) {
	for n, want := range map[int]string{37: "37", 5000: "5 k", 1_000_000: "1 M", 2_500_000: "2.5 M", 10_000_000: "10 M"} {
		if got := Amount(n); got != want {
			t.Errorf("Amount(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestTarget(t *testing.T) {
	for _, c := range []struct {
		Target
		want string
	}{
		{Target{Bound: 4, Got: 4}, "PASS"},
		{Target{Bound: 4, Got: 5}, "FAIL"},
		{Target{Bound: 4, Got: 4, AtLeast: true}, "PASS"},
		{Target{Bound: 4, Got: 3, AtLeast: true}, "FAIL"},
		{Target{Bound: 4, Got: math.NaN(), AtLeast: true}, "not measured"},
	} {
		if got := c.Verdict(); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
