package main

import (
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// What is left is shown relative to the burst, and not at all if the request wasn't counted.
func TestWordsOfADecision(t *testing.T) {
	for want, d := range map[string]checkapi.CheckResponse{
		"allowed: no limit applies":                                                                 {Allowed: true, Limit: -1, Remaining: -1},
		"allowed by quota: 73 of 100 left":                                                          {Allowed: true, Rule: "quota", Limit: 100, Remaining: 73},
		"allowed by quota: 199 of 200 left":                                                         {Allowed: true, Rule: "quota", Limit: 1000, Burst: 200, Remaining: 199},
		"allowed by quota: 73 of 100 left, after waiting 250ms":                                     {Allowed: true, Rule: "quota", Limit: 100, Remaining: 73, DelayMS: 250},
		"refused by quota: 0 of 100 left, retry in 600ms":                                           {Rule: "quota", Limit: 100, RetryAfterMS: 600},
		"refused by quota: 73 of 100 left, waiting does not help":                                   {Rule: "quota", Limit: 100, Remaining: 73, RetryAfterMS: -1},
		"refused: the client is on the deny list, waiting does not help":                            {Limit: -1, Remaining: -1, RetryAfterMS: -1, Reason: "denied"},
		"refused: the node can't decide now; its /readyz says why, retry in 2s":                     {Limit: -1, Remaining: -1, RetryAfterMS: 2000, Reason: "unavailable"},
		"refused by orgs: the request lacks a value that the rule counts by, waiting does not help": {Rule: "orgs", Limit: -1, Remaining: -1, RetryAfterMS: -1, Reason: "identity_required"},
		"allowed by feed: not counted, since the store can't be reached":                            {Allowed: true, Rule: "feed", Limit: 100, Remaining: -1, Degraded: true},
		"refused by login: not counted, since the store can't be reached, retry in 1s":              {Rule: "login", Limit: 100, Remaining: -1, RetryAfterMS: 1000, Degraded: true},
		"allowed by quota: 73 of 100 left (degraded: the store can't be reached)":                   {Allowed: true, Rule: "quota", Limit: 100, Remaining: 73, Degraded: true},
		"allowed by streams: 1 of 2 left, with a slot for 30s":                                      {Allowed: true, Rule: "streams", Limit: 2, Remaining: 1, SlotTTLMS: 30_000},
		"refused by streams: 0 of 2 left, retry in 6s or sooner, when a slot is released":           {Rule: "streams", Limit: 2, RetryAfterMS: 6000, RetryIsAGuess: true},
	} {
		word := "refused"
		if d.Allowed {
			word = "allowed"
		}
		if got := word + words(&d); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// What is left of an amount is shown exactly, and every limit on an amount has a line.
func TestWordsOfAmounts(t *testing.T) {
	spend := checkapi.LimitStatus{Rule: "spend", Amount: "usd", Limit: 1.5, Remaining: 0.088, WindowEnd: time.Date(2026, 12, 14, 23, 0, 0, 0, time.UTC)}
	tokens := checkapi.LimitStatus{Rule: "tokens", Amount: "tokens", Limit: 2000, Burst: 5000, Remaining: 4500}
	gone := checkapi.LimitStatus{Rule: "gone", Amount: "usd", Limit: 2, Remaining: -1}
	for want, d := range map[string]checkapi.CheckResponse{
		"allowed by spend: 0.088 of 1.5 usd left until 2026-12-14T23:00:00Z\n  tokens: 4500 of 5000 tokens left\n": {
			Allowed: true, Rule: "spend", Limit: 1, Remaining: 0, Limits: []checkapi.LimitStatus{spend, tokens}},
		"allowed by requests: 9 of 10 left\n  spend: 0.088 of 1.5 usd left until 2026-12-14T23:00:00Z\n  gone: not counted\n": {
			Allowed: true, Rule: "requests", Limit: 10, Remaining: 9, Limits: []checkapi.LimitStatus{{Rule: "requests", Limit: 10, Remaining: 9}, spend, gone}},
	} {
		var more strings.Builder
		printAmountsLeft(&more, &d)
		if got := "allowed" + words(&d) + "\n" + more.String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
