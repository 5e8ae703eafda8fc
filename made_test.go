package weir

import (
	"math"
	"math/big"
	"testing"

	"github.com/weirhq/weir/counter"
	"pgregory.net/rapid"
)

// A sum is exact, and is rounded up only once.
func TestMadeAmounts(t *testing.T) {
	const perMillion = 1_000_000 // 1 usd per million tokens, in 10^-12 usd a token
	gpt := []Weight{{"input", 5 * perMillion / 2}, {"cached", 5 * perMillion / 4}, {"output", 10 * perMillion}}
	for _, row := range []struct {
		name  string
		parts []Weight
		of    map[string]counter.Amount
		want  string
		known bool
	}{
		{"1,500 at 2.50/1M", gpt, map[string]counter.Amount{"input": counter.Whole(1500)}, "0.00375", true},
		{"all of it", gpt, map[string]counter.Amount{"input": counter.Whole(1500), "cached": counter.Whole(400), "output": counter.Whole(812), "other": counter.Whole(9)}, "0.01237", true},
		{"nothing that counts", gpt, map[string]counter.Amount{"tokens": counter.Whole(5)}, "0", false},
		{"nothing at all", gpt, nil, "0", false},
		{"no parts", nil, map[string]counter.Amount{"input": 1}, "0", false},
		{"none of it", gpt, map[string]counter.Amount{"input": 0}, "0", true},
		{"one is not free", gpt, map[string]counter.Amount{"input": 1}, "0.000001", true},
		// Each is 0.4 millionths. Their sum is 1.2, rounded up to 2; rounding each one up would make 3.
		{"rounded once", []Weight{{"a", 400_000}, {"b", 400_000}, {"c", 400_000}}, map[string]counter.Amount{"a": counter.Whole(1), "b": counter.Whole(1), "c": counter.Whole(1)}, "0.000002", true},
		{"exact isn't rounded", []Weight{{"a", 400_000}, {"b", 600_000}}, map[string]counter.Amount{"a": counter.Whole(1), "b": counter.Whole(1)}, "0.000001", true},
		{"an output token counts four", []Weight{{"input", 1e12}, {"output", 4e12}}, map[string]counter.Amount{"input": counter.Whole(100), "output": counter.Whole(20)}, "180", true},
		{"the most there is", []Weight{{"a", maxWeight}, {"b", maxWeight}}, map[string]counter.Amount{"a": counter.MaxAmount, "b": counter.MaxAmount}, "9000000000", true},
		{"just what fits", []Weight{{"a", 1e12}}, map[string]counter.Amount{"a": counter.MaxAmount}, "9000000000", true},
		{"less than nothing", []Weight{{"a", 1e12}, {"b", 1e12}}, map[string]counter.Amount{"a": -5, "b": math.MinInt64}, "0", true},
		{"beyond all bounds", []Weight{{"a", 1e12}}, map[string]counter.Amount{"a": math.MaxInt64}, "9000000000", true},
	} {
		if got, known := made(row.parts, row.of); got.String() != row.want || known != row.known {
			t.Errorf("%s: %s, %v, want %s, %v", row.name, got, known, row.want, row.known)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		var parts []Weight
		of := map[string]counter.Amount{}
		sum := new(big.Int)
		for i := range rapid.IntRange(1, 5).Draw(t, "parts") {
			w := Weight{string(rune('a' + i)), rapid.Int64Range(0, maxWeight).Draw(t, "each")}
			parts = append(parts, w)
			if rapid.Bool().Draw(t, "there") {
				of[w.Amount] = counter.Amount(rapid.Int64Range(0, counter.MaxAmount).Draw(t, "amount"))
				sum.Add(sum, new(big.Int).Mul(big.NewInt(int64(of[w.Amount])), big.NewInt(w.Each)))
			}
		}
		sum.Add(sum, big.NewInt(999_999_999_999)).Div(sum, big.NewInt(1_000_000_000_000))
		want := counter.Amount(counter.MaxAmount)
		if sum.Cmp(big.NewInt(counter.MaxAmount)) < 0 {
			want = counter.Amount(sum.Int64())
		}
		if got, known := made(parts, of); got != want || known != (len(of) > 0) {
			t.Fatalf("%v of %v: %s, %v, want %s", parts, of, got, known, want)
		}
	})
}
