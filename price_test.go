package weir_test

import (
	"math"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
)

func perMillion(model string, usd int64) weir.Sum {
	return weir.Sum{Name: model, Parts: []weir.Weight{{Amount: "input", Each: usd * 1e6}, {Amount: "output", Each: 2 * usd * 1e6}}}
}

// A call is priced by the dearest model that it may be for.
func TestPrice(t *testing.T) {
	million := map[string]counter.Amount{"input": counter.Whole(1_000_000)}
	some := []weir.Sum{perMillion("small", 1), perMillion("large-*", 100)}
	all := append(some[:2:2], perMillion("*", 10))
	for _, c := range []struct {
		prices   []weir.Sum
		asked    []string
		answered string
		want     string
	}{
		{some, []string{"small"}, "", "1"},
		{some, []string{"small", "large-1"}, "", "100"},
		{some, []string{"large-1"}, "small", "100"},
		{some, []string{"small"}, "large-1", "100"},
		{some, []string{"small"}, "small-2024", "1"}, // a version of it
		{some, []string{"small"}, "medium", "100"},   // which may be any
		{some, []string{"Small"}, "", "1"},
		{some, []string{"LARGE-1"}, "", "100"},
		{some, []string{"medium"}, "", "100"},
		{some, nil, "", "100"},
		{some, nil, "small", "1"},
		{some, []string{""}, "small", "1"},
		{all, []string{"small"}, "small-2024", "1"},
		{all, []string{"small"}, "medium", "10"},
		{all, []string{"medium"}, "", "10"},
		{all, []string{"large-"}, "large-2", "100"},
		{all, []string{"LARGE-1"}, "", "100"}, // "*" is for it, too, but isn't the dearest
		{all, nil, "", "100"},
	} {
		set, err := weir.Compile(weir.Rules{Prices: c.prices})
		if err != nil {
			t.Fatal(err)
		}
		if got, known := private.Price(set, c.asked, c.answered, million); !known || got.String() != c.want {
			t.Errorf("%v, answered by %q: %s, %t, want %s", c.asked, c.answered, got, known, c.want)
		}
	}
	weighted, err := weir.Compile(weir.Rules{Prices: some, Weights: []weir.Sum{perMillion("usd", 5)}})
	if err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]string{"small": "1", "medium": "5", "LARGE-1": "100", "": "100"} {
		if got, _ := private.Price(weighted, []string{model}, "", million); got.String() != want {
			t.Errorf("%q, with a weight for usd: %s, want %s", model, got, want)
		}
	}
	set, err := weir.Compile(weir.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	if got, known := private.Price(set, []string{"small"}, "", million); known {
		t.Errorf("without prices: %s", got)
	}
}

// While a part of an amount is unknown, a rule charges its default, or else the assumed amount, and never less than the
// known part.
func TestAssumedAmounts(t *testing.T) {
	rule := func(amount string, by int64) weir.Rule {
		return weir.Rule{ID: amount, By: []string{}, Amount: amount, Default: counter.Whole(by), Limits: []weir.Limit{{Count: 10_000, Window: time.Hour}}, Algorithm: weir.FixedWindow}
	}
	for _, c := range []struct {
		rule    weir.Rule
		choices int64
		left    string
	}{
		{rule("tokens", 0), 0, "5000"},
		{rule("tokens", 700), 0, "9300"},
		{rule("tokens", 700), 1, "9300"},
		{rule("tokens", 700), 10, "3000"},
		{rule("usd", 0), 0, "10"}, // (1,000 + 2 × 4,000) millionths of 1,110 usd
		{rule("usd", 2000), 0, "8000"},
		{rule("usd", 1), 0, "8890"}, // the input alone is more
		{rule("usd", 1), 2000, "8000"},
		{rule("input", 7000), 0, "9000"},
		{rule("pictures", 7), 0, "9993"},
		{rule("pictures", 7), 2, "9986"},
		{rule("pictures", 0), 2, "10000"},
	} {
		set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{c.rule}, Prices: []weir.Sum{perMillion("*", 1_110_000)}})
		if err != nil {
			t.Fatal(err)
		}
		l := weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{})
		d, err := l.Check(t.Context(), &weir.Request{
			Attr: func(string) string { return "m" }, Choices: c.choices, Reserve: time.Minute,
			Amounts: map[string]counter.Amount{"input": counter.Whole(1000)},
			Assumed: map[string]counter.Amount{"input": counter.Whole(1000), "output": counter.Whole(4000), "tokens": counter.Whole(5000)},
		})
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		if got := d.Limits()[0].Left().String(); got != c.left {
			t.Errorf("%s with a default of %s, %d choices: %s left, want %s", c.rule.Amount, c.rule.Default, c.choices, got, c.left)
		}
	}
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{rule("tokens", 700)}})
	if err != nil {
		t.Fatal(err)
	}
	l := weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{})
	if d, err := l.Check(t.Context(), &weir.Request{Choices: math.MaxInt64, Reserve: time.Minute}); err != nil || d.Allowed {
		t.Errorf("more choices than an amount may be: %v, %v", d, err)
	}
}

// A rule that counts an amount applies to a request that reserves, whatever its method.
func TestReservationsOfAnyMethod(t *testing.T) {
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
		{ID: "tokens", By: []string{}, Amount: "tokens", Match: weir.Match{Endpoint: "POST /chat"}, Limits: []weir.Limit{weir.PerHour(1000)}},
		{ID: "posts", By: []string{}, Match: weir.Match{Endpoint: "POST /chat"}, Limits: []weir.Limit{weir.PerHour(1000)}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	l := weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{})
	for _, c := range []struct {
		method  string
		reserve time.Duration
		limits  int
	}{{"POST", time.Minute, 2}, {"post", time.Minute, 2}, {"PUT", time.Minute, 1}, {"GET", time.Minute, 1}, {"PUT", 0, 0}} {
		d, err := l.Check(t.Context(), &weir.Request{Method: c.method, Path: "/chat", Reserve: c.reserve, Amounts: map[string]counter.Amount{"tokens": counter.Whole(1)}})
		if err != nil || len(d.Limits()) != c.limits {
			t.Errorf("%s, reserved for %s: %d limits, want %d; %v", c.method, c.reserve, len(d.Limits()), c.limits, err)
		}
	}
}
