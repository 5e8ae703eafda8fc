package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
)

// daily returns a rule that limits an amount per day for all clients together.
func daily(amount string, n int64) weir.Rule {
	return weir.Rule{ID: amount, By: []string{}, Amount: amount, Algorithm: weir.FixedWindow, Limits: per(n, 366*24*time.Hour)}
}

// amounts returns an amount of tokens.
func amounts(tokens int64) map[string]counter.Amount {
	return map[string]counter.Amount{"tokens": counter.Whole(tokens)}
}

// estimating puts an estimate in front of a limiter.
func estimating(e *httplimit.Estimate, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, httplimit.WithEstimate(r, e)) })
}

// Settle books the usage that a handler reports. Amounts that it doesn't report stay as they were reserved.
func TestSettle(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		left    string // of 1,000, of which 100 are reserved
	}{
		"less":          {func(_ http.ResponseWriter, r *http.Request) { httplimit.Settle(r, amounts(30)) }, "970"},
		"more":          {func(_ http.ResponseWriter, r *http.Request) { httplimit.Settle(r, amounts(300)) }, "700"},
		"more than all": {func(_ http.ResponseWriter, r *http.Request) { httplimit.Settle(r, amounts(3000)) }, "0"},
		"nothing":       {func(_ http.ResponseWriter, r *http.Request) { httplimit.Settle(r, amounts(0)) }, "1000"},
		"silent":        {func(http.ResponseWriter, *http.Request) {}, "900"},
		"other amounts": {func(_ http.ResponseWriter, r *http.Request) { httplimit.Settle(r, map[string]counter.Amount{"usd": 1}) }, "900"},
		"the last word": {func(_ http.ResponseWriter, r *http.Request) {
			httplimit.Settle(r, amounts(30))
			httplimit.Settle(r, amounts(40))
		}, "960"},
		"before a panic": {func(_ http.ResponseWriter, r *http.Request) { httplimit.Settle(r, amounts(30)); panic("boom") }, "970"},
		"a panic":        {func(http.ResponseWriter, *http.Request) { panic("boom") }, "900"},
		"a failure":      {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, "900"},
		"behind a flush": {func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			httplimit.Settle(r, amounts(30))
		}, "970"},
		"its own map": {func(_ http.ResponseWriter, r *http.Request) {
			used := amounts(30)
			httplimit.Settle(r, used)
			used["tokens"] = 0 // it is the handler's
		}, "970"},
		"of another request": {func(_ http.ResponseWriter, r *http.Request) {
			httplimit.Settle(r.WithContext(t.Context()), amounts(30))
		}, "900"},
	} {
		l := limiter(t, rules(daily("tokens", 1000)))
		func() {
			defer func() { _ = recover() }()
			estimating(&httplimit.Estimate{Amounts: amounts(100), Reserve: time.Minute}, wrap(l, httplimit.Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got := left(t, l)["tokens"]; got != "900" || !httplimit.Reserved(r) {
					t.Errorf("%s: before it, %s are left; reserved: %t", name, got, httplimit.Reserved(r))
				}
				c.handler(w, r)
			}))).ServeHTTP(httptest.NewRecorder(), request("/"))
		}()
		if got := left(t, l)["tokens"]; got != c.left {
			t.Errorf("%s: %s are left, want %s", name, got, c.left)
		}
	}
}

// Only estimates are settled, and an amount that is unknown at first is booked once it is known.
func TestEstimates(t *testing.T) {
	priced := weir.Rules{
		Rules:  []weir.Rule{daily("usd", 10)},
		Prices: []weir.Sum{{Name: "gpt-*", Parts: []weir.Weight{{Amount: "output", Each: 1_000_000_000_000}}}}, // a dollar each
	}
	two := map[string]counter.Amount{"output": counter.Whole(2)}
	standard := daily("tokens", 1000)
	standard.Default = counter.Whole(50)
	for name, c := range map[string]struct {
		rules    weir.Rules
		estimate *httplimit.Estimate
		settle   map[string]counter.Amount
		reserved bool
		left     map[string]string
	}{
		"what it takes":       {rules(daily("tokens", 1000)), &httplimit.Estimate{Amounts: amounts(100)}, amounts(30), false, map[string]string{"tokens": "900"}},
		"unknown":             {rules(daily("tokens", 1000)), &httplimit.Estimate{Reserve: time.Minute}, amounts(30), true, map[string]string{"tokens": "970"}},
		"unknown to the end":  {rules(daily("tokens", 1000)), &httplimit.Estimate{Reserve: time.Minute}, nil, true, map[string]string{"tokens": "1000"}},
		"no estimate":         {rules(daily("tokens", 1000)), nil, amounts(30), false, map[string]string{"tokens": "1000"}},
		"the rule's default":  {rules(standard), nil, amounts(30), false, map[string]string{"tokens": "950"}},
		"instead of default":  {rules(standard), &httplimit.Estimate{Reserve: time.Minute}, amounts(30), true, map[string]string{"tokens": "970"}},
		"by a model's price":  {priced, &httplimit.Estimate{Amounts: two, Model: "gpt-small", Reserve: time.Minute}, map[string]counter.Amount{"output": counter.Whole(3)}, true, map[string]string{"usd": "7"}},
		"of an unknown model": {priced, &httplimit.Estimate{Amounts: two, Model: "other", Reserve: time.Minute}, nil, true, map[string]string{"usd": "10"}},
	} {
		l := limiter(t, c.rules)
		h := wrap(l, httplimit.Options{}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if httplimit.Reserved(r) != c.reserved {
				t.Errorf("%s: reserved: %t", name, !c.reserved)
			}
			if c.settle != nil {
				httplimit.Settle(r, c.settle)
			}
		}))
		if c.estimate != nil {
			h = estimating(c.estimate, h)
		}
		h.ServeHTTP(httptest.NewRecorder(), request("/"))
		for rule, want := range c.left {
			if got := left(t, l)[rule]; got != want {
				t.Errorf("%s: %s %s are left, want %s", name, got, rule, want)
			}
		}
	}
	httplimit.Settle(request("/"), amounts(1)) // without a limiter it does nothing
}

// CountsAmounts depends on the path alone, not on the method or the client.
func TestCountsAmounts(t *testing.T) {
	chat := daily("tokens", 1000)
	chat.Match = weir.Match{Endpoint: "POST /v1/chat/{rest...}", APIKeyPattern: "sk_*"}
	regex := daily("usd", 10)
	regex.Match.EndpointRegex = "^/models/"
	l := limiter(t, rules(chat, regex, weir.Rule{ID: "all", Limits: per(1, time.Hour)}))
	m := httplimit.New(l, httplimit.Options{})
	for target, want := range map[string]bool{
		"POST /v1/chat/completions": true, "POST /v1//chat/../chat/completions": true, "GET /v1/chat/completions": true,
		"POST /v1/orders": false, "POST /models/gemini:generateContent": true, "POST /": false,
	} {
		method, path, _ := strings.Cut(target, " ")
		if got := m.CountsAmounts(httptest.NewRequest(method, path, nil)); got != want {
			t.Errorf("%s: %t", target, got)
		}
	}
	if got := m.Amounts(); !slices.Equal(got, []string{"tokens", "usd"}) {
		t.Errorf("%v", got)
	}
	l.SetRules(compile(t, rules(daily("tokens", 1))))
	if !m.CountsAmounts(request("/")) {
		t.Error("other rules aren't seen")
	}
	l.SetRules(compile(t, rules(weir.Rule{ID: "all", Limits: per(1, time.Hour)})))
	if m.CountsAmounts(request("/")) || m.Amounts() != nil {
		t.Error("nothing is counted any more")
	}
}
