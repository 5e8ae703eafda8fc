package weir_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
)

func month(t testing.TB, n string) weir.Limit {
	t.Helper()
	l, err := weir.ParseLimit(n + "/month")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestCompileAmounts: settings of a rule apply to each of its limits that supports them.
func TestCompileAmounts(t *testing.T) {
	const day = 24 * time.Hour
	week := weir.Limit{Count: 7, Window: 7 * day}
	names := func(doc weir.Rules) string {
		var out []string
		x := compile(t, doc).Explain(&weir.Request{APIKey: "k", Amounts: map[string]counter.Amount{"usd": 1}})
		for _, r := range x.Rules {
			for _, p := range r.Limits {
				out = append(out, fmt.Sprint(p.Name, " ", p.Limit.Algorithm, " ", p.Limit.Calendar))
			}
		}
		return strings.Join(out, ", ")
	}
	rule := func(c counter.Calendar, limits ...weir.Limit) weir.Rules {
		return weir.Rules{Rules: []weir.Rule{{ID: "a", Calendar: c, Limits: limits}}}
	}
	for _, row := range []struct {
		doc  weir.Rules
		want string
	}{
		{rule(counter.Calendar{}, month(t, "5")), "a fixed_window {month 0 Sunday }"},
		{rule(counter.Calendar{}, weir.PerSecond(9), month(t, "5")), "a-1s token_bucket {none 0 Sunday }, a-month fixed_window {month 0 Sunday }"},
		{rule(counter.Calendar{Zone: "UTC", Weekday: time.Monday}, month(t, "5")), "a fixed_window {month 0 Sunday }"},
		{rule(counter.Calendar{Zone: "Asia/Tokyo", Day: 15, Weekday: time.Monday}, weir.PerSecond(9), weir.Limit{Count: 8, Window: day}, week, month(t, "6")),
			"a-1s token_bucket {none 0 Sunday }, a-day fixed_window {day 0 Sunday Asia/Tokyo}, a-week fixed_window {week 0 Monday Asia/Tokyo}, a-month fixed_window {month 15 Sunday Asia/Tokyo}"},
		{rule(counter.Calendar{}, week, weir.PerSecond(9)), "a-7d token_bucket {none 0 Sunday }, a-1s token_bucket {none 0 Sunday }"},
		{weir.Rules{Tiers: []weir.Tier{{Name: "t", Limits: []weir.Limit{month(t, "5")}}}, Rules: []weir.Rule{{ID: "a", Calendar: counter.Calendar{Zone: "Asia/Tokyo"}}}}, "a fixed_window {month 0 Sunday Asia/Tokyo}"},
		{weir.Rules{Tiers: []weir.Tier{{Name: "t", Limits: []weir.Limit{month(t, "0.5")}}}, Rules: []weir.Rule{{ID: "a", Amount: "usd"}}}, "a fixed_window {month 0 Sunday }"},
	} {
		if got := names(row.doc); got != row.want {
			t.Errorf("got  %s\nwant %s", got, row.want)
		}
	}
	// A month's default calendar is UTC, so naming UTC must not start a new counter.
	id := func(c counter.Calendar) uint64 {
		return compile(t, rule(c, month(t, "5"))).Explain(&weir.Request{}).Rules[0].Limits[0].ID
	}
	if id(counter.Calendar{}) != id(counter.Calendar{Zone: "UTC", Day: 1, Weekday: time.Monday}) || id(counter.Calendar{}) == id(counter.Calendar{Zone: "Asia/Tokyo"}) {
		t.Error("another counter, or the same one")
	}
	// A millionth is a valid limit.
	names(weir.Rules{Rules: []weir.Rule{{ID: "a", Amount: "usd", Limits: []weir.Limit{{Fraction: 1, Window: time.Hour}, {Algorithm: weir.TokenBucket, Fraction: 1, Window: time.Second}}}}})
}

func TestCompileRejectsAmounts(t *testing.T) {
	one := func(r weir.Rule) weir.Rules {
		if r.ID = "a"; r.Limits == nil {
			r.Limits = per(10, time.Minute)
		}
		return weir.Rules{Rules: []weir.Rule{r}}
	}
	slots := []weir.Limit{{Count: 5}}
	parts := func(amount string, each int64) []weir.Weight { return []weir.Weight{{Amount: amount, Each: each}} }
	for want, doc := range map[string]weir.Rules{
		`rules[0].limit: must be a whole number, got 10.5: only amounts have f`:   one(weir.Rule{Limits: []weir.Limit{{Count: 10, Fraction: 500_000, Window: time.Hour}}}),
		`with the numbers of tier "t": must be a whole number, got 0.5`:           {Tiers: []weir.Tier{{Name: "t", Limits: []weir.Limit{{Fraction: 500_000, Window: time.Hour}}}}, Rules: []weir.Rule{{ID: "a"}}},
		`rules[0]: refuses every request that lacks usd: it is charged 11, and`:   one(weir.Rule{Amount: "usd", Default: counter.Whole(11)}),
		`rules[0].calendar: is for limits over a day, a week or a month`:          one(weir.Rule{Calendar: counter.Calendar{Zone: "Asia/Tokyo"}}),
		`rules[0].override.k.calendar: is for limits over a day`:                  one(weir.Rule{Calendar: counter.Calendar{Zone: "Asia/Tokyo"}, Limits: []weir.Limit{month(t, "5")}, Override: map[string][]weir.Limit{"k": per(1, time.Hour)}}),
		`rules[0].calendar.day: is the day on which months begin, and 10/day is`:  one(weir.Rule{Calendar: counter.Calendar{Day: 15}, Limits: per(10, 24*time.Hour)}),
		`rules[0].calendar.tz: there is no time zone "Berlin"`:                    one(weir.Rule{Calendar: counter.Calendar{Zone: "Berlin"}, Limits: []weir.Limit{month(t, "5")}}),
		`rules[0].limits[1]: the rule has two limits over month: keep the lower`:  one(weir.Rule{Limits: []weir.Limit{month(t, "5"), month(t, "6")}}),
		`rules[0]: needs a limit: how many requests may be in flight, such as 20`: {Tiers: []weir.Tier{{Name: "t", Limits: per(5, time.Minute)}}, Rules: []weir.Rule{{ID: "a", Algorithm: weir.Concurrency}}},
		`rules[0].past_limit: can't stand beside concurrency`:                     one(weir.Rule{Algorithm: weir.Concurrency, Book: true, Limits: slots}),
		`rules[0].past_limit: concurrency doesn't count what it refuses`:          one(weir.Rule{Algorithm: weir.Concurrency, CountRefused: true, Limits: slots}),
		`rules[0].amount: must be a name of a-z, 0-9 and _ such as tokens`:        one(weir.Rule{Amount: "to kens"}),
		`prices.m.: must be the name of an amount`:                                {Prices: []weir.Sum{{Name: "m", Parts: parts("", 1)}}},
		`prices.m.usd: usd can't be made of itself`:                               {Prices: []weir.Sum{{Name: "m", Parts: parts("usd", 1)}}},
		`prices.m.input: must be a number from 0 to a million`:                    {Prices: []weir.Sum{{Name: "m", Parts: parts("input", -1)}}},
		`prices[0]: needs a model`:                                                {Prices: []weir.Sum{{Parts: parts("input", 1)}}},
		`prices.m: needs amounts`:                                                 {Prices: []weir.Sum{{Name: "m"}}},
		`weights.x: is listed twice`:                                              {Weights: []weir.Sum{{Name: "x", Parts: parts("a", 1)}, {Name: "x", Parts: parts("a", 1)}}},
		`weights.X: must be the name of an amount`:                                {Weights: []weir.Sum{{Name: "X", Parts: parts("a", 1)}}},
		`rules[0].amount: can't stand beside a descriptor`:                        one(weir.Rule{Descriptor: []string{"edge", "a"}, Amount: "tokens"}),
		`rules[0].algorithm: concurrency can't stand beside a descriptor`:         one(weir.Rule{Descriptor: []string{"edge", "a"}, Algorithm: weir.Concurrency, Limits: slots}),
		`rules[0].calendar: can't stand beside a descriptor`:                      one(weir.Rule{Descriptor: []string{"edge", "a"}, Calendar: counter.Calendar{Zone: "UTC"}}),
	} {
		if _, err := weir.Compile(doc); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}

// TestExplainAmounts: Explain shows which amount a rule counts, how much of it a request takes and why, or why none.
func TestExplainAmounts(t *testing.T) {
	doc := spend()
	doc.Rules = append(doc.Rules, weir.Rule{ID: "usual", Amount: "tokens_out", Default: counter.Whole(500), Cost: 2, By: []string{}, Limits: per(5000, time.Hour)})
	model := func(name string) func(string) string { return func(string) string { return name } }
	usd := func(n counter.Amount) map[string]counter.Amount { return map[string]counter.Amount{"usd": n} }
	parts := map[string]counter.Amount{"input": counter.Whole(1500), "output": counter.Whole(100)}
	for _, row := range []struct {
		name string
		req  weir.Request
		want [3]string
	}{
		{"said", weir.Request{Amounts: usd(12_000)}, [3]string{"0.012 usd: as the request says",
			"no: the request lacks tokens and what it is made of, input, output; the rule has no default, and doesn't charge it",
			"1000 tokens_out: the rule's default, since the request doesn't say, times the rule's cost of 2"}},
		{"made", weir.Request{Amounts: parts, Attr: model("gpt-large-2")}, [3]string{"0.00475 usd: 1500 input, 100 output at the price of gpt-large*", "1900 tokens: 1500 input, 100 output by their weights", "1000 tokens_out: "}},
		{"no price", weir.Request{Amounts: parts, Attr: model("claude")}, [3]string{`no: the request lacks usd, and no price is for its model "claude"; the rule has no default, and doesn't charge it`, "1900 tokens: ", "1000 "}},
		{"no model", weir.Request{Amounts: parts}, [3]string{"no: the request lacks usd, and names no model whose price it could have; the rule", "1900 tokens: ", "1000 "}},
		{"a price of other amounts", weir.Request{Amounts: map[string]counter.Amount{"output": counter.Whole(1)}, Attr: model("gpt-small")}, [3]string{"no: the request lacks usd and what it is made of, input; the rule", "4 tokens: 1 output by their weights", "1000 "}},
		{"a peek", weir.Request{Peek: true}, [3]string{"0 usd: a peek that doesn't say asks for nothing", "0 tokens: a peek", "1000 "}},
		{"a reservation", weir.Request{Reserve: time.Minute}, [3]string{"0 usd: the request doesn't say, and what it settles is booked", "0 tokens: ", "1000 "}},
	} {
		row.req.APIKey, row.req.Org = "k", "acme"
		for i, r := range compile(t, doc).Explain(&row.req).Rules {
			got := fmt.Sprintf("%s %s: %s", r.Charged, r.Amount, r.AmountFrom)
			if !r.Applies {
				got = "no: " + r.Why
			}
			if !strings.HasPrefix(got, row.want[i]) || r.Cost != 0 || r.Amount == "" {
				t.Errorf("%s: %s: %s\nwant %s", row.name, r.ID, got, row.want[i])
			}
		}
	}
	// The reason about the client comes before the one about the amount.
	doc.Rules[0].Missing = weir.MissingSkip
	if r := compile(t, doc).Explain(&weir.Request{APIKey: "k"}).Rules[0]; r.Applies || r.Why != "the request lacks org, and the rule skips such requests" {
		t.Errorf("%+v", r)
	}
}
