package main

import "testing"

// TestExplainAmounts checks that explain says what a rule counts, and how much of it this request takes or why it takes
// none.
func TestExplainAmounts(t *testing.T) {
	rules := file(t, `rules:
  - {id: requests, by: [ip], limit: 60/minute}
  - {id: tokens, by: [], amount: tokens, default: 500, limit: 1000/minute}
  - {id: spend, by: [], amount: usd, limit: 12.50/month, calendar: {tz: Europe/Berlin, day: 15}}
  - {id: weekly, by: [], limits: [9/second, 700/week], calendar: {tz: Asia/Tokyo}}
  - {id: slots, by: [], algorithm: concurrency, limit: 20}
prices: {"gpt-*": {input: 2.50/1M, output: 10/1M}}
`)
	s := newShell(t, answers{})
	s.run("explain", "--rules", rules, "--ip", "203.0.113.7", "--attr", "model=gpt-large", "--amount", "input=1200", "--amount", "output=300").expect(t, 0,
		`  yes  requests: it has no conditions; 60/minute from the rule, by ip, cost 1
  yes  tokens: it has no conditions; 1000/minute from the rule, one counter for all, charged 500 tokens (the rule's default, since the request doesn't say)
  yes  spend: it has no conditions; 12.5/month (fixed_window, from day 15 in Europe/Berlin) from the rule, one counter for all, charged 0.006 usd (1200 input, 300 output at the price of gpt-*)
  yes  weekly: it has no conditions; 9/second and 700/week (fixed_window, from Monday in Asia/Tokyo) from the rule, one counter for all, cost 1
  yes  slots: it has no conditions; 20 in flight (concurrency) from the rule, one counter for all, cost 1
`, "")
	s.run("explain", "--rules", rules, "--ip", "203.0.113.7", "--attr", "model=o3", "--amount", "input=1200").expect(t, 0,
		`no price is for its model "o3"; the rule has no default, and doesn't charge it`, "")
	s.run("explain", "--rules", rules, "--amount", "tokens=7", "--json").expect(t, 0, `"charged": 7,`, "")
	s.run("explain", "--rules", rules, "--amount", "tokens").expect(t, exitUsage, "", "--amount: must be NAME=NUMBER")
}
