package main

import (
	"testing"

	"github.com/weirhq/weir/internal/checkapi"
)

// What is left is left of the burst, and of what nobody counted nothing is said to be left.
func TestWordsOfADecision(t *testing.T) {
	for want, d := range map[string]checkapi.CheckResponse{
		"allowed: no limit applies":                                                    {Allowed: true, Limit: -1, Remaining: -1},
		"allowed by quota: 73 of 100 left":                                             {Allowed: true, Rule: "quota", Limit: 100, Remaining: 73},
		"allowed by quota: 199 of 200 left":                                            {Allowed: true, Rule: "quota", Limit: 1000, Burst: 200, Remaining: 199},
		"allowed by quota: 73 of 100 left, after waiting 250ms":                        {Allowed: true, Rule: "quota", Limit: 100, Remaining: 73, DelayMS: 250},
		"refused by quota: 0 of 100 left, retry in 600ms":                              {Rule: "quota", Limit: 100, RetryAfterMS: 600},
		"refused by quota: 73 of 100 left, waiting does not help":                      {Rule: "quota", Limit: 100, Remaining: 73, RetryAfterMS: -1},
		"refused: denied":                                                              {Limit: -1, Remaining: -1, Reason: "denied"},
		"allowed by feed: not counted, since the store can't be reached":               {Allowed: true, Rule: "feed", Limit: 100, Remaining: -1, Degraded: true},
		"refused by login: not counted, since the store can't be reached, retry in 1s": {Rule: "login", Limit: 100, Remaining: -1, RetryAfterMS: 1000, Degraded: true},
		"allowed by quota: 73 of 100 left (degraded: the store can't be reached)":      {Allowed: true, Rule: "quota", Limit: 100, Remaining: 73, Degraded: true},
	} {
		if got := words(&d); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
