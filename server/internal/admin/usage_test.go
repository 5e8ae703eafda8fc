package admin_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/server/internal/admin"
)

// TestWhatIf checks what a lower limit would have refused, by key, and that the response says what isn't known.
func TestWhatIf(t *testing.T) {
	p := open(t, nil, "")
	p.want(t, p.do(t, "PUT", "/v1/rules/key", `{"key": "sk_special", "rule": "search", "limit": "100/minute"}`), 200, "")
	refused := uint64(0)
	for key, n := range map[string]int{"sk_busy": 40, "sk_calm": 3, "sk_special": 50} {
		for range n {
			d, err := p.limiter.Check(t.Context(), &weir.Request{APIKey: key, KeyVerified: true, Path: "/v1/search"})
			if err != nil {
				t.Fatal(err)
			}
			if !d.Allowed {
				refused++
			}
		}
	}
	ask := func(body string, status int) (out admin.WhatIfAnswer, text string) {
		t.Helper()
		a := p.do(t, "POST", "/v1/rules/whatif", body)
		p.want(t, a, status, "")
		if status == 200 {
			if err := json.Unmarshal([]byte(a.text), &out); err != nil {
				t.Fatal(err)
			}
		}
		return out, a.text
	}
	// Of sk_busy's 40 requests, 10 fit under the other limit, whichever slots they fell into.
	got, text := ask(`{"rule": "search", "limit": "10/hour"}`, 200)
	if got.Requests != 93 || got.WasRefused != refused || refused == 0 || got.WouldRefuse != 30 || got.Keys != 3 || got.KeysRefused != 1 || got.KeysSpecial != 1 || got.Coverage != 1 {
		t.Errorf("%s", text)
	}
	if len(got.Clients) != 1 || got.Clients[0].WouldRefuse != 30 || got.Clients[0].WasRefused != refused || !strings.Contains(strings.Join(got.Notes, "\n"), "override") {
		t.Errorf("%s", text)
	}
	p.want(t, p.do(t, "PUT", "/v1/rules/id/two", `{"limits": [{"limit": "5/second", "burst": 9}, "100/hour"]}`), 200, "")
	for body, want := range map[string]string{
		`{"rule": "two", "limit": "4/second"}`:                                      "in the place of all 2 that the rule has\",\"the rule's burst is left out",
		`{"rule": "two", "limit": "4/second", "capacity": 9}`:                       `in the place of all 2 that the rule has"]`,
		`{"rule": "search", "limit": 10}`:                                           `"limit":"10/minute"`,
		`{"rule": "search", "capacity": 7}`:                                         `"limit":"30/minute","capacity":7`,
		`{"rule": "search", "limit": "10/hour", "algorithm": "sliding_window_log"}`: `"would_refuse":30`,
		`{"rule": "quota", "limit": "10/hour"}`:                                     `of all tiers`,
		`{"rule": "address", "limit": "10/hour", "algorithm": "leaky_queue"}`:       `"algorithm":"leaky_queue"`,
	} {
		if _, text := ask(body, 200); !strings.Contains(text, want) {
			t.Errorf("%s: %s", body, text)
		}
	}
	for body, want := range map[string]string{
		`{"rule": "search", "limit": "10/fortnight"}`:                                    "limit: ",
		`{"rule": "search", "limit": "0/s"}`:                                             "limit: must be at least 1",
		`{"rule": "search"}`:                                                             "give a limit",
		`{"rule": "quota", "limit": 10}`:                                                 "limit: must be a count and a window",
		`{"rule": "search", "limit": "1/s", "algorithm": "magic"}`:                       "token_bucket, leaky_bucket, leaky_queue, fixed_window",
		`{"rule": "search", "limit": "1/s", "capacity": 5, "algorithm": "fixed_window"}`: "burst",
		`{"rule": "search", "limit": "1/s", "window": 5}`:                                "unknown field",
	} {
		if _, text := ask(body, 400); !strings.Contains(text, want) {
			t.Errorf("%s: %s", body, text)
		}
	}
	ask(`{"rule": "none", "limit": "1/s"}`, 404)
	p.want(t, p.do(t, "PUT", "/v1/rules/id/spend?force=true", `{"amount": "usd", "limit": "12.50/month", "by": ["org", "api_key"]}`), 200, "")
	p.want(t, p.do(t, "PUT", "/v1/rules/id/slots?force=true", `{"algorithm": "concurrency", "limit": 20}`), 200, "")
	for body, want := range map[string]string{
		`{"rule": "spend", "limit": 10}`: "the rule counts usd", `{"rule": "slots", "limit": 10}`: "the rule counts requests in flight", `{"rule": "slots", "capacity": 10}`: "in flight",
	} {
		if _, text := ask(body, 400); !strings.Contains(text, want) {
			t.Errorf("%s: %s", body, text)
		}
	}
	if got, text := ask(`{"rule": "search", "limit": "10/month"}`, 200); got.Algorithm != "fixed_window" || got.Limit != "10/month" {
		t.Errorf("%s", text)
	}
	// The kinds of numbers stay the same.
	p.want(t, p.do(t, "PUT", "/v1/rules/key", `{"key": "sk_special", "rule": "spend", "limit": 99.75}`), 200, "")
	p.want(t, p.do(t, "PUT", "/v1/rules/key", `{"key": "sk_special", "rule": "slots", "limit": 30}`), 200, "")
	if a := p.do(t, "GET", "/v1/rules/id/spend", ""); !strings.Contains(a.text, `sk_special: 99.75/month`) || !strings.Contains(a.text, `"limits":["12.5/month"]`) {
		t.Error(a.text)
	}
	if a := p.do(t, "GET", "/v1/rules/id/slots", ""); !strings.Contains(a.text, `sk_special: {limit: 30}`) || !strings.Contains(a.text, `"limits":["20 in flight"]`) {
		t.Error(a.text)
	}
}

// TestUsageNamesEveryRule checks that the list includes rules without requests.
func TestUsageNamesEveryRule(t *testing.T) {
	p := open(t, nil, "")
	for i := range 3 {
		p.send(t, weir.Request{APIKey: fmt.Sprint("sk_", i), KeyVerified: true, Path: "/v1/search"})
	}
	var got struct {
		Bytes int
		Rules []struct {
			Rule           string
			Requests, Keys int
			LastHit        *string `json:"last_hit"`
		}
	}
	a := p.do(t, "GET", "/v1/rules/usage", "")
	if err := json.Unmarshal([]byte(a.text), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Rules) != 3 || got.Rules[0].Rule != "address" || got.Rules[2].Rule != "search" || got.Rules[2].Requests != 3 || got.Rules[2].Keys != 3 ||
		got.Rules[0].Keys != 1 || got.Rules[0].LastHit == nil || got.Bytes == 0 {
		t.Errorf("%s", a.text)
	}
	p.want(t, p.do(t, "PUT", "/v1/rules/id/unused", `{"limit": "9000/minute"}`), 200, "")
	if a := p.do(t, "GET", "/v1/rules/usage", ""); !strings.Contains(a.text, `{"rule":"unused","requests":0,`) {
		t.Errorf("%s", a.text)
	}
}
