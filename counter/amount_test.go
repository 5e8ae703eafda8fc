package counter

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseAmount(t *testing.T) {
	for s, want := range map[string]Amount{
		"0": 0, "1": micro, "1500": 1500 * micro, "0.012": 12_000, "2.50": 2_500_000, "0.000001": 1, "007": 7 * micro,
		"1.0000000000": micro, "9000000000": MaxAmount, "8999999999.999999": MaxAmount - 1, "0.0": 0,
	} {
		if got, err := ParseAmount(s); got != want || err != nil {
			t.Errorf("%s: %d, %v, want %d", s, got, err, want)
		}
	}
	for s, want := range map[string]string{
		"":                     "must be a number",
		".":                    "must be a number",
		".5":                   "must be a number",
		"5.":                   "must be a number",
		"-1":                   "must be a number",
		"+1":                   "must be a number",
		"1e3":                  "must be a number",
		"1.2.3":                "must be a number",
		"1,500":                "must be a number",
		"0x10":                 "must be a number",
		" 1":                   "must be a number",
		"١":                    "must be a number",
		"0.0000001":            "has more than six digits behind the point: 0.0000001",
		"9000000000.000001":    "must be at most 9000000000, got 9000000000.000001",
		"99999999999999999999": "must be at most 9000000000",
	} {
		if got, err := ParseAmount(s); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %d, %v, want %s", s, got, err, want)
		}
	}
}

// An amount that is written in any form reads back exactly.
func TestAmountRoundTrip(t *testing.T) {
	many(t, func(t *rapid.T) {
		a := Amount(rapid.Int64Range(0, MaxAmount).Draw(t, "millionths"))
		if rapid.Bool().Draw(t, "whole") {
			a = Whole(int64(a / micro))
		}
		if got, err := ParseAmount(a.String()); got != a || err != nil {
			t.Fatalf("%d is %s, which is %d, %v", a, a, got, err)
		}
		b, err := json.Marshal(map[string]Amount{"n": a})
		if want := `{"n":` + a.String() + `}`; err != nil || string(b) != want {
			t.Fatalf("%s, %v, want %s", b, err, want)
		}
		var back map[string]Amount
		if err := json.Unmarshal(b, &back); err != nil || back["n"] != a {
			t.Fatalf("%s: %v, %v", b, back, err)
		}
		// Python writes 0.000012 as 1.2e-05; other languages use other forms.
		digits, zeros := strconv.FormatInt(int64(a), 10), rapid.IntRange(0, 20).Draw(t, "zeros")
		for _, s := range []string{
			fmt.Sprintf("%se-6", digits),
			fmt.Sprintf("%s%sE-%d", digits, strings.Repeat("0", zeros), zeros+6),
			fmt.Sprintf("0.%s%se%+03d", strings.Repeat("0", zeros), digits, zeros+len(digits)-6),
		} {
			if got, err := amountOfNumber(s); got != a || err != nil {
				t.Fatalf("%s is %s, %v, want %s", s, got, err, a)
			}
		}
	})
}

// A number with more digits is rounded up, by less than a millionth.
func TestAmountOfAnyNumber(t *testing.T) {
	many(t, func(t *rapid.T) {
		s := rapid.StringMatching(`(0|[1-9][0-9]{0,11})(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?`).Draw(t, "number")
		exact, ok := new(big.Rat).SetString(s)
		if !ok {
			t.Fatalf("%s is no number", s)
		}
		exact.Mul(exact, big.NewRat(micro, 1))
		up := new(big.Int).Add(exact.Num(), exact.Denom())
		up.Sub(up, big.NewInt(1)).Div(up, exact.Denom())
		var a Amount
		err := json.Unmarshal([]byte(s), &a)
		switch fits := up.IsInt64() && up.Int64() <= MaxAmount; {
		case fits && (err != nil || int64(a) != up.Int64()):
			t.Fatalf("%s is %d, %v, want %s", s, a, err, up)
		case !fits && err == nil:
			t.Fatalf("%s is %d, and too much", s, a)
		}
	})
	for s, want := range map[string]Amount{
		"0.0000001": 1, "1e-400": 1, "1e-99999999999999999999": 1, "0e99999999999999999999": 0, "-0": 0, "-0.0e5": 0, "9e9": MaxAmount, "1E3": 1000 * micro,
		"0.000012e0": 12, "1.2e-05": 12, "8999999999.9999991": MaxAmount, "1.1e0": 1_100_000,
	} {
		a := Amount(7)
		if err := json.Unmarshal([]byte(s), &a); err != nil || a != want {
			t.Errorf("%s: %d, %v, want %d", s, a, err, want)
		}
	}
	for s, want := range map[string]error{
		"-1": errAmount, "-1e-9": errAmount, `"5"`: errAmount, "null": errAmount, "true": errAmount, "{}": errAmount,
		"9000000000.0000001": errTooMuch, "9000000001": errTooMuch, "1e10": errTooMuch, "1e99999999999999999999": errTooMuch,
	} {
		a := Amount(7)
		if err := a.UnmarshalJSON([]byte(s)); err != want || a != 7 {
			t.Errorf("%s: %v, %v, want %v", s, a, err, want)
		}
	}
	for _, s := range []string{"", "-", "e5", "1e", "1e+", "0x10", "inf", "NaN", "1_000", ".5", "5.", "1.e5", "--1", "1e1.5"} {
		if a, err := amountOfNumber(s); err != errAmount {
			t.Errorf("%q: %v, %v", s, a, err)
		}
	}
}

func TestAmountStrings(t *testing.T) {
	for a, want := range map[Amount]string{
		0: "0", 1: "0.000001", micro: "1", 1_500_000: "1.5", 1500 * micro: "1500", -12_000: "-0.012", MaxAmount: "9000000000",
		math.MinInt64: "-9223372036854.775808", math.MaxInt64: "9223372036854.775807",
	} {
		if got := a.String(); got != want {
			t.Errorf("%d: %s, want %s", int64(a), got, want)
		}
	}
	for n, want := range map[int64]Amount{0: 0, -5: 0, 3: 3 * micro, MaxTokens: MaxAmount, math.MaxInt64: MaxAmount} {
		if got := Whole(n); got != want {
			t.Errorf("Whole(%d) = %d, want %d", n, got, want)
		}
	}
}

// Every algorithm that can limit amounts is exact to a millionth, and the largest amount causes no overflow.
func TestDecimalLimits(t *testing.T) {
	for _, a := range []Algorithm{TokenBucket, LeakyBucket, FixedWindow} {
		t.Run(a.String(), func(t *testing.T) {
			p := policyOf(t, Limit{Algorithm: a, Decimal: true, Fraction: 50_000, Window: Month.length()})
			s, ok := p.Try(State{}, midnight, 12_000)
			if !ok || p.Report(s, midnight, 12_000, Taken).Remaining != 38_000 {
				t.Fatalf("0.012 of 0.05: %v, %+v", ok, p.Report(s, midnight, 12_000, Taken))
			}
			if _, ok := p.Try(s, midnight, 38_001); ok {
				t.Error("a millionth too much")
			}
			if s, ok = p.Try(s, midnight, 38_000); !ok {
				t.Error("what was left doesn't fit")
			}
			if s, ok = p.Try(s, midnight, 1); ok {
				t.Error("nothing was left")
			}
			s = p.Return(s, midnight, 8_000, p.Report(s, midnight, 1, Fits).Slot)
			if r := p.Report(s, midnight, 1, Fits); r.Remaining != 8_000 || p.Exact(r.Remaining).Tokens() != 0 {
				t.Errorf("0.008 given back: %+v", r)
			}

			p = policyOf(t, Limit{Algorithm: a, Decimal: true, Count: MaxTokens, Window: Month.length()})
			for _, n := range []int64{MaxAmount, MaxAmount + 1, maxExact} {
				s, ok := p.Try(State{}, midnight, n)
				if ok != (n == MaxAmount) {
					t.Errorf("%d fit: %v", n, ok)
				}
				for range 3 {
					s = p.Overdraw(s, midnight, n)
				}
				if r := p.Report(s, midnight, 1, Refused); r.Remaining != 0 || r.RetryAfter <= 0 {
					t.Errorf("%d, booked thrice: %+v, %+v", n, s, r)
				}
				if s = p.Return(s, midnight, n, p.Report(s, midnight, 1, Fits).Slot); p.Report(s, midnight, 1, Fits).Remaining > MaxAmount {
					t.Errorf("%d given back: %+v", n, s)
				}
			}
		})
	}
}
