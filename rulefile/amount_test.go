package rulefile

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // for machines without time zone data

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
)

const testDay = 24 * time.Hour

// onMonth returns a limit of n per calendar month.
func onMonth(n int64) weir.Limit {
	return weir.Limit{Count: n, Window: 31 * testDay, Calendar: counter.Calendar{Unit: counter.Month}}
}

func slots(n int64) weir.Limit { return weir.Limit{Algorithm: weir.Concurrency, Count: n} }

// TestAmountRules reads rules that count amounts, calendar windows or requests in flight.
func TestAmountRules(t *testing.T) {
	tests := []struct {
		name, rule string
		want       weir.Rule
	}{
		{"an amount", `{id: a, amount: tokens, limit: 5/minute}`, weir.Rule{Amount: "tokens", Limits: []weir.Limit{{Count: 5, Window: time.Minute}}}},
		{"a fraction", `{id: a, amount: usd, limit: 12.50/minute}`, weir.Rule{Amount: "usd", Limits: []weir.Limit{{Count: 12, Fraction: 500_000, Window: time.Minute}}}},
		{"less than one", `{id: a, amount: usd, algorithm: fixed_window, limit: 0.000001 per day}`, weir.Rule{Amount: "usd", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Fraction: 1, Window: testDay}}}},
		{"a number with a window", `{id: a, amount: usd, params: {limit: 1_000.25, window: 60}}`, weir.Rule{Amount: "usd", Limits: []weir.Limit{{Count: 1000, Fraction: 250_000, Window: time.Minute}}}},
		{"default, unsettled", `{id: a, amount: tokens, default: 0.5, unsettled: give_back, limit: 5/minute, burst: 9}`, weir.Rule{
			Amount: "tokens", Default: 500_000, GiveBackUnsettled: true, Limits: []weir.Limit{{Count: 5, Window: time.Minute, Burst: 9}}}},
		{"keep", `{id: a, amount: tokens, default: 1_000, unsettled: keep, limit: 5000/minute}`, weir.Rule{Amount: "tokens", Default: counter.Whole(1000), Limits: []weir.Limit{{Count: 5000, Window: time.Minute}}}},
		{"month", `{id: a, limit: 50/month}`, weir.Rule{Limits: []weir.Limit{onMonth(50)}}},
		{"month, named", `{id: a, algorithm: fixed_window, limit: 50 per month}`, weir.Rule{Algorithm: weir.FixedWindow, Limits: []weir.Limit{onMonth(50)}}},
		{"month among others", `{id: a, limits: [{limit: 20/second, burst: 5}, 1000/month], tiers: {pro: {limits: [2000/month]}}, override: {k: 7/month}, candidate: 8/month}`, weir.Rule{
			Limits:    []weir.Limit{{Count: 20, Window: time.Second, Burst: 5}, onMonth(1000)},
			Tiers:     []weir.Tier{{Name: "pro", Limits: []weir.Limit{onMonth(2000)}}},
			Override:  map[string][]weir.Limit{"k": {onMonth(7)}},
			Candidate: []weir.Limit{onMonth(8)}}},
		{"calendar", `{id: a, limit: 50/month, calendar: {tz: Europe/Berlin, day: 31}}`, weir.Rule{
			Calendar: counter.Calendar{Zone: "Europe/Berlin", Day: 31, Weekday: time.Monday}, Limits: []weir.Limit{onMonth(50)}}},
		{"weeks begin on Mondays", `{id: a, limit: 50/week, calendar: {tz: Asia/Tokyo}}`, weir.Rule{
			Calendar: counter.Calendar{Zone: "Asia/Tokyo", Weekday: time.Monday}, Limits: []weir.Limit{{Count: 50, Window: 7 * testDay}}}},
		{"weeks that begin on Sundays", `{id: a, limit: 50/7d, calendar: {weekday: sunday}}`, weir.Rule{
			Calendar: counter.Calendar{Zone: "UTC"}, Limits: []weir.Limit{{Count: 50, Window: 7 * testDay}}}},
		{"weeks that begin on Saturdays", `{id: a, limits: [9/second, 50/week], calendar: {weekday: saturday}}`, weir.Rule{
			Calendar: counter.Calendar{Zone: "UTC", Weekday: time.Saturday}, Limits: []weir.Limit{{Count: 9, Window: time.Second}, {Count: 50, Window: 7 * testDay}}}},
		{"concurrency", `{id: a, algorithm: concurrency, limit: 20}`, weir.Rule{Algorithm: weir.Concurrency, Limits: []weir.Limit{slots(20)}}},
		{"concurrency in all its places", `{id: a, algorithm: concurrency, params: {limit: 20}, slot_ttl: 90, tiers: {pro: 50}, override: {k: {limit: 60, expires: 9999-01-01T00:00:00Z}, l: 70}, candidate: {limit: 10}}`, weir.Rule{
			Algorithm: weir.Concurrency, SlotTTL: 90 * time.Second, Limits: []weir.Limit{slots(20)}, Tiers: []weir.Tier{{Name: "pro", Limits: []weir.Limit{slots(50)}}},
			Override: map[string][]weir.Limit{"k": {slots(60)}, "l": {slots(70)}}, Candidate: []weir.Limit{slots(10)}}},
		{"a month of Envoy's", `{id: a, match: {descriptor: [edge, tenant]}, limit: 50/month}`, weir.Rule{
			Descriptor: []string{"edge", "tenant"}, Algorithm: weir.FixedWindow, Limits: []weir.Limit{onMonth(50)}}},
	}
	for _, tt := range tests {
		f, err := Parse("rules.yaml", []byte("rules: ["+tt.rule+"]"))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		tt.want.ID = "a"
		if got := f.Rules.Rules[0]; !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got\n%+v\nwant\n%+v", tt.name, got, tt.want)
		}
	}
}

// TestAmountsFile checks that the example file means what its comments say: which limits apply, and how each is
// counted.
func TestAmountsFile(t *testing.T) {
	src, err := os.ReadFile("testdata/amounts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f, err := Parse("rules.yaml", src)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range f.Warnings {
		if w.Path != "tiers.team" { // the warning says which requests are in this tier
			t.Errorf("unexpected warning: %s", w)
		}
	}
	got := map[string]string{}
	for _, tier := range []string{"free", "pro", "team"} {
		for _, r := range f.Set.Explain(&weir.Request{
			APIKey: "sk_pro_acme", Tier: tier, TierVerified: true, Method: "POST", Path: "/v1/files/a",
			Amounts: map[string]counter.Amount{"tokens": counter.Whole(1), "usd": 1},
		}).Rules {
			for _, p := range r.Limits {
				l := p.Limit
				text := fmt.Sprint(l, " ", l.Algorithm)
				if c := l.Calendar; c.Unit != counter.NoUnit {
					text += fmt.Sprint(" ", c.Zone, " ", c.Day, " ", c.Weekday)
				}
				if l.Algorithm == weir.Concurrency {
					text += " for " + l.Window.String()
				}
				got[tier+" "+p.Name+map[bool]string{true: " candidate"}[p.Candidate]] = text
			}
		}
	}
	for name, want := range map[string]string{
		"free requests":        "60/minute token_bucket",
		"pro requests":         "600/minute token_bucket",
		"team requests":        "1000/month fixed_window  0 Sunday",
		"team tokens":          "2500000.5/minute token_bucket",
		"free spend":           "12.5/month fixed_window Europe/Berlin 15 Sunday",
		"free spend candidate": "10/month fixed_window Europe/Berlin 15 Sunday",
		"free budget-1s":       "20/second token_bucket",
		"free budget-month":    "1000/month fixed_window  0 Sunday",
		"free weekly":          "5000/week fixed_window America/New_York 0 Monday",
		"free sundays-day":     "1000/day fixed_window  0 Sunday",
		"free sundays-week":    "5000/week fixed_window  0 Sunday",
		"free uploads":         "100 in flight concurrency for 1m0s",
	} {
		if got[name] != want {
			t.Errorf("%s: got %q, want %q", name, got[name], want)
		}
	}
	want := []weir.Sum{
		{Name: "gpt-large*", Parts: []weir.Weight{{Amount: "input", Each: 2_500_000}, {Amount: "cached", Each: 1_250_000}, {Amount: "output", Each: 10_000_000}}},
		{Name: "gpt-small", Parts: []weir.Weight{{Amount: "input", Each: 150_000}, {Amount: "output", Each: 600_000}}},
		{Name: "*", Parts: []weir.Weight{{Amount: "input", Each: 5_000_000}, {Amount: "output", Each: 15_000_000}}},
	}
	if !reflect.DeepEqual(f.Rules.Prices, want) {
		t.Errorf("prices %+v", f.Rules.Prices)
	}
	weights := []weir.Sum{{Name: "points", Parts: []weir.Weight{{Amount: "input", Each: 1e12}, {Amount: "output", Each: 4e12}, {Amount: "cached", Each: 1e11}}}}
	if !reflect.DeepEqual(f.Rules.Weights, weights) {
		t.Errorf("weights %+v", f.Rules.Weights)
	}
}

// TestEach checks that weights and prices are read exactly.
func TestEach(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "0.000/1B": 0, "1": 1e12, "007": 7e12, "0.5": 5e11, "2.50/1M": 2_500_000, `"2.50/1M"`: 2_500_000, "10/1K": 1e10, "1_000/1B": 1e6,
		"0.001/1B": 1, "0.000000000001": 1, "1000000": 1e18, "1000000000/1K": 1e18, "2.5e-06": 2_500_000, "2.5e-06/1K": 2_500, "1E2": 1e14, "1.230e+1": 123e11,
		"0e99": 0, "1000e-15": 1, "12.345678/1M": 12_345_678,
	} {
		f, err := Parse("rules.yaml", []byte("rules: []\nweights: {a: {b: "+text+"}}"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := f.Rules.Weights[0].Parts[0].Each; got != want {
			t.Errorf("%s is %d, want %d", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"-1": "got -1", "1000000.1": "at most 1000000", "1e99": "at most 1000000", "1e18": "at most", "1e-13": "12 behind the point", "0.0001/1B": "3 behind the point",
		"1/2M": "1K, 1M, 1B", "1/1T": "1K, 1M, 1B", "1/M": `did you mean "1/1M"?`, "1/1000000": `did you mean "1/1M"?`, "2 per 1k": `did you mean "2/1K"?`, "€3": `did you mean "3"?`,
		"true": "got true", "[1]": "got a list", "{x: 1}": "got a map of fields", ".5": "must be", "5.": "must be", "1e": "must be", "0x10": "must be", "NaN": "must be", "1e100": "must be",
	} {
		if _, err := Parse("rules.yaml", []byte("rules: []\nweights: {a: {b: "+text+"}}")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestPriceWarnings checks the warnings about prices that no model reaches, and about models without a price.
func TestPriceWarnings(t *testing.T) {
	const spend, address = "{id: spend, amount: usd, by: [ip], limit: 5/month}", "{id: address, by: [ip], limit: 5/s}"
	const uncharged = `the gateway charges a model without a price the highest price in the list; the other edges don't charge it by "spend", ` +
		`unless the request says how many usd it takes: add a price for "*" at the end, or give the rule a ` + "`default`"
	for _, tt := range []struct{ name, text, want string }{
		{"no price for the rest", "rules: [" + spend + "]\nprices: {gpt-*: {input: 1/1M}}", "rules.yaml:2:9: prices: " + uncharged},
		{"a price for the rest", "rules: [" + spend + "]\nprices: {gpt-*: {input: 1/1M}, '*': {input: 1/1M}}", ""},
		{"a weight for the rest", "rules: [" + spend + "]\nprices: {gpt-*: {input: 1/1M}}\nweights: {usd: {input: 2/1M}}", ""},
		{"a default for the rest", "rules: [" + strings.Replace(spend, "amount", "default: 1, amount", 1) + "]\nprices: {gpt-*: {input: 1/1M}}", ""},
		{"no prices", "rules: [" + spend + "]", ""},
		{"nobody counts money", "rules: [" + address + "]\nprices: {gpt-*: {input: 1/1M}}", ""},
		{"never reached", "rules: [" + address + "]\nprices: {gpt-*: {input: 1/1M}, gpt-4.1*: {input: 2/1M}}", `rules.yaml:2:42: prices.gpt-4.1*: no model gets here: "gpt-*" stands before it`},
		{"never reached, exactly", "rules: [" + address + "]\nprices: {'*-mini': {input: 1/1M}, o4-mini: {input: 2/1M}}", `rules.yaml:2:44: prices.o4-mini: no model gets here: "*-mini" stands before it`},
		{"reached", "rules: [" + address + "]\nprices: {gpt-4.1*: {input: 2/1M}, 'gpt-*': {input: 1/1M}, '*-x': {input: 3/1M}}", ""},
	} {
		f, err := Parse("rules.yaml", []byte(tt.text))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		switch {
		case tt.want == "" && len(f.Warnings) > 0:
			t.Errorf("%s: warned of %v", tt.name, f.Warnings)
		case tt.want != "" && (len(f.Warnings) != 1 || !strings.HasPrefix(f.Warnings[0].String(), tt.want)):
			t.Errorf("%s: got %v\nwant %s", tt.name, f.Warnings, tt.want)
		}
	}
}

// TestUnpricedModels checks that models without a price are charged as the warning says.
func TestUnpricedModels(t *testing.T) {
	f, err := Parse("rules.yaml", []byte("rules: [{id: spend, amount: usd, by: [ip], limit: 5/month}]\nprices: {small: {input: 1/1M}, large: {input: 2/1M}}"))
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]counter.Amount{"input": counter.Whole(1_000_000)}
	if usd, known := private.Price(f.Set, []string{"other"}, "", used); !known || usd != counter.Whole(2) {
		t.Errorf("the gateway charges %s usd (%t), want the highest price, 2", usd, known)
	}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), f.Set, weir.Options{})
	for model, rule := range map[string]string{"other": "", "large": "spend"} {
		if d, err := limiter.Check(t.Context(), &weir.Request{Amounts: used, Attr: func(string) string { return model }}); err != nil || d.Rule != rule {
			t.Errorf("%s: charged by %q (%v), want %q", model, d.Rule, err, rule)
		}
	}
}

// TestEditAmounts checks that edited numbers keep their kind: amounts, calendar windows and slots.
func TestEditAmounts(t *testing.T) {
	src, err := os.ReadFile("testdata/amounts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := string(src)
	for _, tt := range []struct {
		name string
		edit func([]byte) ([]byte, error)
		want string
	}{
		{"a tier's month", setTier("team", Numbers{Limit: "2500"}), "-  team: 1000/month\n+  team: 2500/month\n"},
		{"a tier's month, named", setTier("team", Numbers{Limit: "2500/month"}), "-  team: 1000/month\n+  team: 2500/month\n"},
		{"a month that becomes days", setTier("team", Numbers{Limit: "1000/31d"}), "-  team: 1000/month\n+  team: 1000/31d\n"},
		{"a minute that becomes a month", setTier("free", Numbers{Limit: "60/month"}), "-  free: 60/minute\n+  free: 60/month\n"},
		{"an override with a fraction", setOverride("tokens", "sk_pro_acme", Numbers{Limit: "750.25"}), "-      sk_pro_acme: 2500000.5/minute   # while they move in\n+      sk_pro_acme: 750.25/minute   # while they move in\n"},
		{"an override of an amount", setOverride("tokens", "k", Numbers{Limit: "1000000"}), "+      k: 1000000/minute\n"},
		{"an override of money", setOverride("spend", "k", Numbers{Limit: "99.99"}), "+    override:\n+      k: 99.99/month\n"},
		{"an override of money over a day", setOverride("spend", "k", Numbers{Limit: "0.5/month", Expires: noon}), "+    override:\n+      k: {limit: 0.5/month, expires: 2026-11-16T12:00:00Z}\n"},
		{"a new override of slots", setOverride("uploads", "k", Numbers{Limit: "7"}), "+      k: {limit: 7}\n"},
		{"a new override of slots that expires", setOverride("uploads", "k", Numbers{Limit: "7", Expires: noon}), "+      k: {limit: 7, expires: 2026-11-16T12:00:00Z}\n"},
		{"an override of slots", setOverride("uploads", "sk_pro_acme", Numbers{Limit: "7"}), "-      sk_pro_acme: {limit: 100}\n+      sk_pro_acme: {limit: 7}\n"},
		{"the same slots", setOverride("uploads", "sk_pro_acme", Numbers{Limit: "100"}), ""},
		{"an override of a week", setOverride("weekly", "k", Numbers{Limit: "9"}), "+    override:\n+      k: 9/7d\n"},
		{"a rule of slots", putRule("uploads", `{"match": {"endpoint": "POST /v1/files/{name}"}, "algorithm": "concurrency", "limit": 30, "slot_ttl": "1m", "tiers": {"pro": 60}, "override": {"sk_pro_acme": {"limit": 100}}}`),
			"-    limit: 20\n+    limit: 30\n-    tiers: {pro: 50}\n+    tiers: {pro: 60}\n"},
		{"a rule of money", putRule("spend", `{"by": ["org", "api_key"], "amount": "usd", "limit": "20.25/month", "calendar": {"tz": "UTC", "day": 15}, "candidate": "10/month"}`),
			"-    limit: 12.50/month\n-    calendar: {tz: Europe/Berlin, day: 15}\n+    limit: 20.25/month\n+    calendar: {tz: UTC, day: 15}\n"},
	} {
		got, err := tt.edit(src)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		} else if diff := lineDiff(text, string(got)); diff != tt.want {
			t.Errorf("%s: got\n%swant\n%s", tt.name, diff, tt.want)
		}
	}
	for _, tt := range []struct {
		name string
		edit func([]byte) ([]byte, error)
		want string
	}{
		{"slots over a time", setOverride("uploads", "sk_pro_acme", Numbers{Limit: "7/minute"}), "the override counts requests in flight: give a number such as 50, without a time"},
		{"new slots over a time", setOverride("uploads", "k", Numbers{Limit: "7/minute"}), `limit: the rule "uploads" counts requests in flight: give a number such as 50, without a time`},
		{"slots with a burst", setOverride("uploads", "k", Numbers{Limit: "7", Capacity: 3}), `limit: the rule "uploads" counts requests in flight, and has no burst`},
		{"a burst of slots alone", setOverride("uploads", "k", Numbers{Capacity: 3}), `limit: the rule "uploads" counts requests in flight, and has no burst`},
		{"a fraction of requests", setOverride("weekly", "k", Numbers{Limit: "9.5/week"}), `rules:`},
		{"too many digits", setOverride("spend", "k", Numbers{Limit: "9.1234567"}), "limit: has more than six digits behind the point"},
		{"too much", setOverride("spend", "k", Numbers{Limit: "99999999999"}), "limit: must be at most 9000000000, got 99999999999"},
		{"too much over a month", setOverride("spend", "k", Numbers{Limit: "99999999999999/month"}), "limit: must be at most 9000000000, got 99999999999999"},
		{"nothing", setOverride("spend", "k", Numbers{Limit: "0.0"}), "limit: must be at least 1, got 0.0"},
		{"an hour on the calendar", setOverride("spend", "k", Numbers{Limit: "5/hour"}), "rules:"},
	} {
		if got, err := tt.edit(src); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: got %v\n%s", tt.name, err, got)
		}
	}
}

// TestTierOfRequests checks that changing a tier, whose numbers are requests, doesn't change rules for that tier that
// count something else.
func TestTierOfRequests(t *testing.T) {
	const text = `tiers: {pro: 5/minute}
rules:
  - {id: a, tier: pro, limit: 6/minute}
  - {id: b, tier: pro, limit: 6000/minute, amount: tokens}
  - {id: c, tier: pro, limit: 7, algorithm: concurrency}
`
	got, err := SetTier([]byte(text), "pro", Numbers{Limit: "9"})
	if want := strings.NewReplacer("5/minute", "9/minute", "6/minute", "9/minute").Replace(text); err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
	// With several limits, the window selects the one to change. A bucket can't become a monthly limit.
	const several = "tiers: {t: {limits: [5/s, 100/month, 50/31d]}, b: {capacity: 5, refill_rate: 1}}\nrules: [{id: q}]"
	got, err = SetTier([]byte(several), "t", Numbers{Limit: "200/month"})
	if err != nil || string(got) != strings.Replace(several, "100/month", "200/month", 1) {
		t.Errorf("%v\n%s", err, got)
	}
	got, err = SetTier([]byte(several), "t", Numbers{Limit: "60/31d"})
	if err != nil || string(got) != strings.Replace(several, "50/31d", "60/31d", 1) {
		t.Errorf("%v\n%s", err, got)
	}
	if _, err = SetTier([]byte(several), "t", Numbers{Limit: "200/hour"}); err == nil || !strings.Contains(err.Error(), "over second, month, 31d") {
		t.Error(err)
	}
	if _, err = SetTier([]byte(several), "b", Numbers{Limit: "200/month"}); err == nil || !strings.HasPrefix(err.Error(), `the tier "b" is a bucket, and a bucket is no budget`) {
		t.Error(err)
	}
	js := `{"rules":[{"id":"a","algorithm":"concurrency","limit":7}]}`
	got, err = SetOverride([]byte(js), "a", "k", Numbers{Limit: "9"})
	if want := `{"rules":[{"id":"a","algorithm":"concurrency","limit":7,"override":{"k":{"limit":9}}}]}`; err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
}

// TestCompareAmounts checks the warnings about changes of amounts, months and slots.
func TestCompareAmounts(t *testing.T) {
	const old = `rules:
  - id: spend
    amount: usd
    default: 0.5
    by: [ip]
    limit: 12.50/month
  - id: uploads
    algorithm: concurrency
    limit: 20
    tiers: {pro: 50}
  - id: both
    limits: [20/second, 1000/month, 900/31d]
  - id: all
    by: []
    limit: 7/s
prices: {"*": {input: 2/1M, output: 10/1M}}
weights: {points: {output: 4}}
`
	for _, tt := range []struct{ name, from, to, want string }{
		{"money", "12.50/month", "6/month", `rules.yaml:6:12: rules[0] "spend": limit: the limit is cut by more than half, from 12.5/month to 6/month; 6.25/month would be half of it`},
		{"money, by half", "12.50/month", "6.25/month", ""},
		{"the month's days", "12.50/month", "12.50/31d", ""},
		{"less than a cent", "12.50/month", "0.5/month", `rules.yaml:6:12: rules[0] "spend": limit: the limit is cut by more than half, from 12.5/month to 0.5/month`},
		{"another amount", "amount: usd", "amount: tokens", ""},
		{"a default", "default: 0.5", "default: 1.5", `rules.yaml:4:14: rules[0] "spend": default: a request that lacks usd is charged 1.5 and was charged 0.5; write default: 0.5`},
		{"slots", "limit: 20\n", "limit: 9\n", `rules.yaml:9:12: rules[1] "uploads": limit: the limit is cut by more than half, from 20 in flight to 9 in flight; 10 in flight would be half of it`},
		{"a tier's slots", "pro: 50", "pro: 20", `rules.yaml:10:18: rules[1] "uploads": tiers.pro: the limit is cut by more than half, from 50 in flight to 20 in flight`},
		{"one of several", "1000/month", "100/month", `rules.yaml:12:25: rules[2] "both": limits[1]: the limit is cut by more than half, from 1000/month to 100/month; 500/month`},
		{"another of several", "900/31d", "100/31d", `rules.yaml:12:37: rules[2] "both": limits[2]: the limit is cut by more than half, from 900/31d to 100/31d; 450/31d`},
		{"a price", "10/1M", "10/1K", `rules.yaml:16:37: prices.*.output: counts for more than twice what it did, so that limits admit less than half`},
		{"a price, twice", "10/1M", "20/1M", ""},
		{"a weight", "output: 4", "output: 9", `rules.yaml:17:28: weights.points.output: counts for more than twice what it did`},
		{"requests in place of slots", "algorithm: concurrency\n    limit: 20\n    tiers: {pro: 50}", "limit: 1/h", ""},
	} {
		if strings.Count(old, tt.from) != 1 {
			t.Fatalf("%s: %q is there %d times", tt.name, tt.from, strings.Count(old, tt.from))
		}
		checkComparison(t, tt.name, old, strings.Replace(old, tt.from, tt.to, 1), tt.want)
	}
	// A rule that counts tokens doesn't limit requests without tokens.
	checkComparison(t, "tokens in place of requests", "rules: [{id: a, limit: 5/m}]", "rules: [{id: a, limit: 5/m, amount: tokens}]",
		`rules.yaml:1:9: rules[0] "a": the rule is for less than it was, and no other limits the rest`)
	checkComparison(t, "tokens with a default", "rules: [{id: a, limit: 5/m}]", "rules: [{id: a, limit: 5/m, amount: tokens, default: 1}]", "")
}
