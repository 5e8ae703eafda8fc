package weir_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
)

// charged returns what a request was charged, by the names of limits.
func charged(t testing.TB, doc weir.Rules, req weir.Request) (out []string) {
	t.Helper()
	l := weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, doc), weir.Options{Observe: func(o *weir.Observation) {
		for _, c := range o.Charges {
			s := fmt.Sprintf("%s %d", c.Policy.Name, c.N)
			if c.Peek {
				s += " peek"
			}
			if c.Hold != nil {
				s += fmt.Sprintf(" %s", c.Hold.For)
				if c.Hold.GiveBack {
					s += " back"
				}
			}
			out = append(out, s)
		}
	}})
	check(t, l, req)
	return out
}

func llm() weir.Rules {
	return weir.Rules{
		Rules: []weir.Rule{
			{ID: "requests", Limits: per(20, time.Minute)},
			{ID: "address", By: []string{"ip"}, Limits: per(50, time.Second)},
			{ID: "tokens", Amount: "tokens", Limits: per(200_000, time.Minute)},
		},
	}
}

func spend() weir.Rules {
	return weir.Rules{
		Rules: []weir.Rule{
			{ID: "spend", By: []string{"org"}, Amount: "usd", Limits: per(50, time.Hour)},
			{ID: "weighted", By: []string{"org"}, Amount: "tokens", Limits: per(1_000_000, time.Hour)},
		},
		Prices: []weir.Sum{
			{Name: "gpt-large*", Parts: []weir.Weight{{Amount: "input", Each: 2_500_000}, {Amount: "cached", Each: 1_250_000}, {Amount: "output", Each: 10_000_000}}},
			{Name: "gpt-*", Parts: []weir.Weight{{Amount: "input", Each: 100_000}}},
		},
		Weights: []weir.Sum{{Name: "tokens", Parts: []weir.Weight{{Amount: "input", Each: 1e12}, {Amount: "output", Each: 4e12}}}},
	}
}

func TestWhatRequestsAreCharged(t *testing.T) {
	whole := counter.Whole
	model := func(name string) func(string) string {
		return func(attr string) string {
			if attr != "attr:model" {
				t.Errorf("asked for %s", attr)
			}
			return name
		}
	}
	with := func(doc weir.Rules, change func(r *weir.Rule)) weir.Rules {
		change(&doc.Rules[len(doc.Rules)-1])
		return doc
	}
	tokens := map[string]counter.Amount{"tokens": whole(1500)}
	parts := map[string]counter.Amount{"input": whole(1500), "output": whole(100)}
	const reserve = 2 * time.Minute
	for name, row := range map[string]struct {
		doc  weir.Rules
		req  weir.Request
		want string
	}{
		"an LLM call of 1,500 tokens is one request":   {llm(), weir.Request{Amounts: tokens}, "requests 1, address 1, tokens 1500000000"},
		"a cost isn't charged to amounts":              {llm(), weir.Request{Amounts: tokens, Cost: 7}, "requests 7, address 7, tokens 1500000000"},
		"a call without tokens isn't charged any":      {llm(), weir.Request{Amounts: map[string]counter.Amount{"usd": whole(1)}}, "requests 1, address 1"},
		"nor is one without amounts":                   {llm(), weir.Request{}, "requests 1, address 1"},
		"an amount of 0 is looked at":                  {llm(), weir.Request{Amounts: map[string]counter.Amount{"tokens": 0}}, "requests 1, address 1, tokens 0 peek"},
		"as is one below":                              {llm(), weir.Request{Amounts: map[string]counter.Amount{"tokens": -5}}, "requests 1, address 1, tokens 0 peek"},
		"one beyond all bounds is the largest":         {llm(), weir.Request{Amounts: map[string]counter.Amount{"tokens": 1 << 62}}, fmt.Sprintf("requests 1, address 1, tokens %d", int64(counter.MaxAmount))},
		"a default is for those that lack it":          {with(llm(), func(r *weir.Rule) { r.Default = whole(500) }), weir.Request{}, "requests 1, address 1, tokens 500000000"},
		"and not for 0":                                {with(llm(), func(r *weir.Rule) { r.Default = whole(500) }), weir.Request{Amounts: map[string]counter.Amount{"tokens": 0}}, "requests 1, address 1, tokens 0 peek"},
		"a rule's cost multiplies":                     {with(llm(), func(r *weir.Rule) { r.Cost = 3 }), weir.Request{Amounts: tokens, Cost: 7}, "requests 7, address 7, tokens 4500000000"},
		"a default, too":                               {with(llm(), func(r *weir.Rule) { r.Cost, r.Default = 3, whole(500) }), weir.Request{}, "requests 1, address 1, tokens 1500000000"},
		"and overflows nothing":                        {with(llm(), func(r *weir.Rule) { r.Cost = counter.MaxTokens }), weir.Request{Amounts: map[string]counter.Amount{"tokens": counter.MaxAmount}}, fmt.Sprintf("requests 1, address 1, tokens %d", int64(1<<53))},
		"a peek is for nothing, where nothing is said": {llm(), weir.Request{Peek: true}, "requests 1 peek, address 1 peek, tokens 0 peek"},
		"or for what is said":                          {llm(), weir.Request{Peek: true, Amounts: tokens}, "requests 1 peek, address 1 peek, tokens 1500000000 peek"},
		"or for the default":                           {with(llm(), func(r *weir.Rule) { r.Default = whole(500) }), weir.Request{Peek: true}, "requests 1 peek, address 1 peek, tokens 500000000 peek"},
		"a reservation leaves a record of amounts":     {llm(), weir.Request{Amounts: tokens, Reserve: reserve}, "requests 1, address 1, tokens 1500000000 24h0m0s"},
		"which goes back in its time, where it may":    {with(llm(), func(r *weir.Rule) { r.GiveBackUnsettled = true }), weir.Request{Amounts: tokens, Reserve: reserve}, "requests 1, address 1, tokens 1500000000 2m0s back"},
		"and in a day at the most":                     {with(llm(), func(r *weir.Rule) { r.GiveBackUnsettled = true }), weir.Request{Amounts: tokens, Reserve: 9000 * time.Hour}, "requests 1, address 1, tokens 1500000000 24h0m0s back"},
		"a peek reserves nothing":                      {llm(), weir.Request{Amounts: tokens, Reserve: reserve, Peek: true}, "requests 1 peek, address 1 peek, tokens 1500000000 peek"},
		"what may be repeated has names for a minute":  {llm(), weir.Request{Amounts: tokens, Repeat: counter.Once{1}}, "requests 1 1m0s, address 1 1m0s, tokens 1500000000 1m0s"},
		"also reserved":                                {llm(), weir.Request{Amounts: tokens, Repeat: counter.Once{1}, Reserve: reserve}, "requests 1 1m0s, address 1 1m0s, tokens 1500000000 24h0m0s"},
		"1,500 at 2.50/1M, and 100 at 10/1M":           {spend(), weir.Request{Attr: model("gpt-large-2"), Amounts: parts}, "spend 4750, weighted 1900000000"},
		"the first price that matches counts":          {spend(), weir.Request{Attr: model("gpt-small"), Amounts: parts}, "spend 150, weighted 1900000000"},
		"a model without a price costs nothing":        {spend(), weir.Request{Attr: model("claude"), Amounts: parts}, "weighted 1900000000"},
		"nor does none":                                {spend(), weir.Request{Attr: model(""), Amounts: parts}, "weighted 1900000000"},
		"also where attributes are unknown":            {spend(), weir.Request{Amounts: parts}, "weighted 1900000000"},
		"what is said goes before what is made":        {spend(), weir.Request{Attr: model("gpt-large"), Amounts: map[string]counter.Amount{"input": whole(1500), "usd": 12_000, "tokens": whole(7)}}, "spend 12000, weighted 7000000"},
		"a price of what isn't there is no price":      {spend(), weir.Request{Attr: model("gpt-small"), Amounts: map[string]counter.Amount{"output": whole(100)}}, "weighted 400000000"},
	} {
		row.req.APIKey, row.req.IP, row.req.Org = "k", ip1, "acme"
		if got := strings.Join(charged(t, row.doc, row.req), ", "); got != row.want {
			t.Errorf("%s: %s, want %s", name, got, row.want)
		}
	}
	if got := private.Attributes(compile(t, spend())); !slices.Equal(got, []string{"attr:model"}) {
		t.Errorf("the rules ask for %v", got)
	}
}

// A check that charges requests and tokens is all or nothing, and reports the exact remaining amounts.
func TestAmountsBesideRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t,
			weir.Rule{ID: "requests", Limits: per(3, time.Hour)},
			weir.Rule{ID: "usd", Amount: "usd", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Fraction: 50_000, Window: time.Hour}}},
		)
		call := func(usd counter.Amount) weir.Decision {
			return check(t, l, weir.Request{APIKey: "k", Amounts: map[string]counter.Amount{"usd": usd}})
		}
		left := func(d weir.Decision) string {
			return fmt.Sprint(d.Allowed, " ", d.Rule, " ", d.Limits()[0].Left(), " ", d.Limits()[1].Left(), " ", d.Remaining)
		}
		for _, row := range []struct {
			usd  counter.Amount
			want string
		}{
			{12_000, "true requests 2 0.038 2"},
			{38_001, "false usd 2 0.038 0"},
			{1, "true requests 1 0.037999 1"},
			{37_999, "true requests 0 0 0"},
			{0, "false requests 0 0 0"},
		} {
			if got := left(call(row.usd)); got != row.want {
				t.Errorf("%s: %s, want %s", row.usd, got, row.want)
			}
		}
		time.Sleep(time.Hour)
		if d := call(60_000); d.Allowed || d.RetryAfter != weir.Never || d.Rule != "usd" {
			t.Errorf("more than ever fits: %+v", d)
		}
	})
}

func TestCompileRejectsAmountsThatCannotBe(t *testing.T) {
	one := func(r weir.Rule) weir.Rules {
		r.ID = "a"
		return weir.Rules{Rules: []weir.Rule{r}}
	}
	limit, twenty := per(10, time.Minute), []weir.Limit{{Count: 20}}
	month := []weir.Limit{{Count: 50, Window: 31 * 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Month}}}
	in := counter.Calendar{Zone: "Europe/Berlin"}
	parts := []weir.Weight{{Amount: "input", Each: 1}}
	for want, doc := range map[string]weir.Rules{
		`rules[0].algorithm: sliding_window_log counts requests, not amounts`:     one(weir.Rule{Amount: "tokens", Algorithm: weir.SlidingLog, Limits: limit}),
		`rules[0].algorithm: sliding_window_counter counts requests, not amounts`: one(weir.Rule{Amount: "tokens", Algorithm: weir.SlidingCounter, Limits: limit}),
		`rules[0].algorithm: leaky_queue counts requests, not amounts`:            one(weir.Rule{Amount: "tokens", Algorithm: weir.LeakyQueue, Limits: limit}),
		`rules[0].algorithm: concurrency counts requests, not amounts`:            one(weir.Rule{Amount: "tokens", Algorithm: weir.Concurrency, Limits: twenty}),
		`rules[0].split: can't stand beside amount`:                               one(weir.Rule{Amount: "tokens", Strict: true, Split: 4, Limits: limit}),
		`rules[0].amount: must be a name of a-z`:                                  one(weir.Rule{Amount: "Tokens used", Limits: limit}),
		`rules[0].default: is for requests that lack the rule's amount`:           one(weir.Rule{Default: counter.Whole(5), Limits: limit}),
		`rules[0].default: must be from 0 to 9000000000`:                          one(weir.Rule{Amount: "tokens", Default: -1, Limits: limit}),
		`rules[0].unsettled: is for amounts that were reserved`:                   one(weir.Rule{GiveBackUnsettled: true, Limits: limit}),
		`rules[0].limit: must be a whole number, got 0.5`:                         one(weir.Rule{Limits: []weir.Limit{{Fraction: 500_000, Window: time.Minute}}}),
		`rules[0].limit: its fraction must be less than 1`:                        one(weir.Rule{Amount: "usd", Limits: []weir.Limit{{Fraction: 1_000_000, Window: time.Minute}}}),
		`rules[0].limit: must be at least 1, got 0`:                               one(weir.Rule{Amount: "usd", Limits: per(0, time.Minute)}),
		`rules[0].slot_ttl: is for algorithm: concurrency, which token_bucket`:    one(weir.Rule{SlotTTL: time.Minute, Limits: limit}),
		`rules[0].slot_ttl: must be from 1s to 1h, got 999ms`:                     one(weir.Rule{Algorithm: weir.Concurrency, SlotTTL: 999 * time.Millisecond, Limits: twenty}),
		`rules[0].slot_ttl: must be from 1s to 1h, got 1h0m1s`:                    one(weir.Rule{Algorithm: weir.Concurrency, SlotTTL: time.Hour + time.Second, Limits: twenty}),
		`rules[0].limit: must be at most 100000 for concurrency, got 100001`:      one(weir.Rule{Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 100_001}}}),
		`rules[0]: refuses everything: a request costs 21 and at most 20 fit`:     one(weir.Rule{Algorithm: weir.Concurrency, Cost: 21, Limits: twenty}),
		`rules[0].split: can't stand beside concurrency`:                          one(weir.Rule{Algorithm: weir.Concurrency, Strict: true, Split: 4, Limits: twenty}),
		`rules[0].past_limit: can't stand beside concurrency`:                     one(weir.Rule{Algorithm: weir.Concurrency, Book: true, Limits: twenty}),
		`rules[0].past_limit: concurrency doesn't count what it refuses`:          one(weir.Rule{Algorithm: weir.Concurrency, CountRefused: true, Limits: twenty}),
		`rules[0].count: can't stand beside concurrency`:                          one(weir.Rule{Algorithm: weir.Concurrency, Statuses: []int{401}, Limits: twenty}),
		`such as 20`: one(weir.Rule{Algorithm: weir.Concurrency}),
		`rules[0].burst: concurrency has no burst`:                                            one(weir.Rule{Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 20, Burst: 5}}}),
		`rules[0].limit: a month of the calendar is a fixed window, and a leaky_bucket isn't`: one(weir.Rule{Algorithm: weir.LeakyBucket, Limits: month}),
		`rules[0].limit: a month of the calendar is a fixed window, and a sliding_window_log`: one(weir.Rule{Algorithm: weir.SlidingLog, Limits: month}),
		`calendar: is for limits over a day, a week or a month`:                               one(weir.Rule{Algorithm: weir.FixedWindow, Calendar: in, Limits: per(5, time.Hour)}),
		`calendar.day: is the day on which months begin`:                                      one(weir.Rule{Calendar: counter.Calendar{Day: 15}, Limits: per(5, 24*time.Hour)}),
		`calendar.day: must be from 1 to 31, got 32`:                                          one(weir.Rule{Calendar: counter.Calendar{Day: 32}, Limits: month}),
		`calendar.tz: there is no time zone "Mars"`:                                           one(weir.Rule{Calendar: counter.Calendar{Zone: "Mars"}, Limits: month}),
		`prices[0]: needs a model`:                                                            {Prices: []weir.Sum{{Parts: parts}}},
		`prices.gpt: needs amounts`:                                                           {Prices: []weir.Sum{{Name: "gpt"}}},
		`prices.gpt.input: must be a number from 0 to a million`:                              {Prices: []weir.Sum{{Name: "gpt", Parts: []weir.Weight{{Amount: "input", Each: -1}}}}},
		`weights.tokens.input: must be a number from 0 to a million`:                          {Weights: []weir.Sum{{Name: "tokens", Parts: []weir.Weight{{Amount: "input", Each: 1e18 + 1}}}}},
		`weights.tokens: is listed twice`:                                                     {Weights: []weir.Sum{{Name: "tokens", Parts: parts}, {Name: "tokens", Parts: parts}}},
		`weights.input.input: input can't be made of itself`:                                  {Weights: []weir.Sum{{Name: "input", Parts: parts}}},
	} {
		rs, err := weir.Compile(doc)
		if err == nil {
			t.Errorf("want %s; compiled to %+v", want, rs.Rules())
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %s", err, want)
		} else if n := len(strings.Split(err.Error(), "\n")); n > 2 {
			t.Errorf("%d problems for one: %v", n, err)
		}
	}
}

// Compile turns these documents into these limits.
func TestCompileFitsLimits(t *testing.T) {
	const day = 24 * time.Hour
	for name, row := range map[string]struct {
		rule weir.Rule
		want weir.Limit
	}{
		"slots last 30 s":            {weir.Rule{Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: 20}}}, weir.Limit{Algorithm: weir.Concurrency, Count: 20, Window: 30 * time.Second}},
		"or as long as the rule has": {weir.Rule{Algorithm: weir.Concurrency, SlotTTL: time.Hour, Limits: []weir.Limit{{Count: 20}}}, weir.Limit{Algorithm: weir.Concurrency, Count: 20, Window: time.Hour}},
		"a month is a fixed window": {
			weir.Rule{Amount: "usd", Calendar: counter.Calendar{Zone: "Europe/Berlin", Day: 15}, Limits: []weir.Limit{{Count: 50, Window: 31 * day, Calendar: counter.Calendar{Unit: counter.Month}}}},
			weir.Limit{Algorithm: weir.FixedWindow, Decimal: true, Count: 50, Window: 31 * day, Calendar: counter.Calendar{Unit: counter.Month, Zone: "Europe/Berlin", Day: 15}},
		},
		"a day is the calendar's, in a zone": {
			weir.Rule{Calendar: counter.Calendar{Zone: "Asia/Kathmandu"}, Limits: per(50, day)},
			weir.Limit{Algorithm: weir.FixedWindow, Count: 50, Window: day, Calendar: counter.Calendar{Unit: counter.Day, Zone: "Asia/Kathmandu"}},
		},
		"a week begins on its day": {
			weir.Rule{Algorithm: weir.FixedWindow, Calendar: counter.Calendar{Weekday: time.Monday}, Limits: per(50, 7*day)},
			weir.Limit{Algorithm: weir.FixedWindow, Count: 50, Window: 7 * day, Calendar: counter.Calendar{Unit: counter.Week, Weekday: time.Monday}},
		},
		"a day without a calendar is a length of time": {weir.Rule{Limits: per(50, day)}, weir.Limit{Count: 50, Window: day}},
		"30 days, too": {weir.Rule{Algorithm: weir.LeakyBucket, Amount: "tokens", Limits: per(50, 30*day)}, weir.Limit{Algorithm: weir.LeakyBucket, Decimal: true, Count: 50, Window: 30 * day}},
	} {
		row.rule.ID = "a"
		l := weir.NewLimiter(storeOf(), compile(t, weir.Rules{Rules: []weir.Rule{row.rule}}), weir.Options{})
		d := check(t, l, weir.Request{APIKey: "k", Amounts: map[string]counter.Amount{"usd": 1, "tokens": 1}})
		if got := d.Limits()[0].Policy.Limit; got != row.want {
			t.Errorf("%s: %+v, want %+v", name, got, row.want)
		}
	}
}

// An edge's own charges of amounts are bounded by the largest amount, not by the largest number of tokens.
func TestTakeOfAmounts(t *testing.T) {
	p, err := counter.NewPolicy("usd", weir.Limit{Algorithm: weir.FixedWindow, Decimal: true, Count: 100_000, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	l := limiter(t)
	for n, want := range map[int64]bool{60_000_000_000: true, 60_000_000_001: false, 1 << 62: false} {
		d, err := private.Take(l, t.Context(), &weir.Request{}, []counter.Charge{{Counter: counter.Counter{Policy: p, Subject: fmt.Append(nil, n)}, N: 40_000_000_000}}, nil)
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		if d, err = private.Take(l, t.Context(), &weir.Request{}, []counter.Charge{{Counter: counter.Counter{Policy: p, Subject: fmt.Append(nil, n)}, N: n}}, nil); err != nil || d.Allowed != want {
			t.Errorf("%d more: %v, %v, want %v", n, d.Allowed, err, want)
		}
	}
}
