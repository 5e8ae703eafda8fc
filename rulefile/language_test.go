package rulefile

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir"
)

// TestRule reads single rules, with every form of each field.
func TestRule(t *testing.T) {
	minute := func(n int64) weir.Limit { return weir.Limit{Count: n, Window: time.Minute} }
	tests := []struct {
		name, rule string
		want       weir.Rule
	}{
		{"smallest", `{id: a, limit: 5/minute}`, weir.Rule{Limits: []weir.Limit{minute(5)}}},
		{"per", `{id: a, limit: 5 per minute}`, weir.Rule{Limits: []weir.Limit{minute(5)}}},
		{"quoted", `{"id": "a", 'limit': '5/minute'}`, weir.Rule{Limits: []weir.Limit{minute(5)}}},
		{"burst", `{id: a, limit: 5/minute, burst: 20}`, weir.Rule{Limits: []weir.Limit{{Count: 5, Window: time.Minute, Burst: 20}}}},
		{"digits", `{id: a, limit: 1_000/minute, burst: 2_000}`, weir.Rule{Limits: []weir.Limit{{Count: 1000, Window: time.Minute, Burst: 2000}}}},
		{"limits", `{id: a, limits: [20/second, {limit: 5000/hour, burst: 100}]}`, weir.Rule{Limits: []weir.Limit{
			{Count: 20, Window: time.Second}, {Count: 5000, Window: time.Hour, Burst: 100}}}},
		{"a burst as a part of the limit", `{id: a, limits: [{limit: 600/minute, burst: 1/6}, {limit: 5/hour, burst: "1 / 6"}, {limit: 100/day, burst: 2/3}]}`, weir.Rule{Limits: []weir.Limit{
			{Count: 600, Window: time.Minute, Burst: 100}, {Count: 5, Window: time.Hour, Burst: 1}, {Count: 100, Window: 24 * time.Hour, Burst: 66}}}},
		{"a capacity as a part of the limit", `{id: a, params: {limit: 100, window: 60, capacity: 1/4}}`, weir.Rule{Limits: []weir.Limit{{Count: 100, Window: time.Minute, Burst: 25}}}},
		{"params of a bucket", `{id: a, params: {capacity: 100, refill_rate: 1.67, window: 60}}`, weir.Rule{Limits: []weir.Limit{
			{Count: 100, Window: time.Minute, Burst: 100, Refill: 1.67}}}},
		{"params without a window", `{id: a, params: {capacity: 100, refill_rate: 1.67}}`, weir.Rule{Limits: []weir.Limit{
			{Count: 100, Window: time.Minute, Burst: 100, Refill: 1.67}}}},
		{"params, window exactly", `{id: a, params: {capacity: 3, refill_rate: 0.1}}`, weir.Rule{Limits: []weir.Limit{
			{Count: 3, Window: 30 * time.Second, Burst: 3, Refill: 0.1}}}},
		{"params, fast", `{id: a, params: {capacity: 3, refill_rate: 100}}`, weir.Rule{Limits: []weir.Limit{
			{Count: 3, Window: time.Second, Burst: 3, Refill: 100}}}},
		{"params, slow", `{id: a, params: {capacity: 100, refill_rate: 0.000001}}`, weir.Rule{Limits: []weir.Limit{
			{Count: 100, Window: 365 * 24 * time.Hour, Burst: 100, Refill: 0.000001}}}},
		{"params, capacity a window", `{id: a, params: {capacity: 100, window: 1m}}`, weir.Rule{Limits: []weir.Limit{
			{Count: 100, Window: time.Minute, Burst: 100}}}},
		{"params, limit and capacity", `{id: a, params: {limit: 100, window: 1m, capacity: 20}}`, weir.Rule{Limits: []weir.Limit{
			{Count: 100, Window: time.Minute, Burst: 20}}}},
		{"params of a window", `{id: a, algorithm: fixed_window, params: {limit: 100, window: 0.5}}`, weir.Rule{Algorithm: weir.FixedWindow, Limits: []weir.Limit{
			{Count: 100, Window: 500 * time.Millisecond}}}},
		{"params with text", `{id: a, algorithm: sliding_window_counter, params: {limit: 100/minute}}`, weir.Rule{Algorithm: weir.SlidingCounter, Limits: []weir.Limit{minute(100)}}},
		{"meter", `{id: a, algorithm: leaky_bucket, mode: meter, limit: 5/minute}`, weir.Rule{Algorithm: weir.LeakyBucket, Limits: []weir.Limit{minute(5)}}},
		{"queue", `{id: a, algorithm: leaky_bucket, mode: queue, max_delay: 1500ms, limit: 5/minute}`, weir.Rule{
			Algorithm: weir.LeakyQueue, MaxDelay: 1500 * time.Millisecond, Limits: []weir.Limit{minute(5)}}},
		{"queue in seconds", `{id: a, algorithm: leaky_bucket, mode: queue, max_delay: 2, limit: 5/minute}`, weir.Rule{
			Algorithm: weir.LeakyQueue, MaxDelay: 2 * time.Second, Limits: []weir.Limit{minute(5)}}},
		{"log", `{id: a, algorithm: sliding_window_log, limit: 5/minute}`, weir.Rule{Algorithm: weir.SlidingLog, Limits: []weir.Limit{minute(5)}}},
		{"tiers", `{id: a, limit: 5/minute, tiers: {pro: 6/minute, max: {limit: 7/minute, burst: 9}, two: {limits: [1/second, 8/minute]}}}`, weir.Rule{
			Limits: []weir.Limit{minute(5)},
			Tiers: []weir.Tier{{Name: "pro", Limits: []weir.Limit{minute(6)}}, {Name: "max", Limits: []weir.Limit{{Count: 7, Window: time.Minute, Burst: 9}}},
				{Name: "two", Limits: []weir.Limit{{Count: 1, Window: time.Second}, minute(8)}}}}},
		{"override", `{id: a, params: {capacity: 100, refill_rate: 1.67, window: 90}, override: {k1: 6/minute, k2: {limit: 7/minute, burst: 9}, k3: {capacity: 1000, refill_rate: 16.67}, k4: {capacity: 10, refill_rate: 1, window: 5s}}}`, weir.Rule{
			Limits: []weir.Limit{{Count: 100, Window: 90 * time.Second, Burst: 100, Refill: 1.67}},
			Override: map[string][]weir.Limit{
				"k1": {minute(6)}, "k2": {{Count: 7, Window: time.Minute, Burst: 9}},
				"k3": {{Count: 1000, Window: 90 * time.Second, Burst: 1000, Refill: 16.67}},
				"k4": {{Count: 10, Window: 5 * time.Second, Burst: 10, Refill: 1}}}}},
		{"override of a window", `{id: a, algorithm: fixed_window, params: {limit: 100, window: 60}, override: {k1: {limit: 500}}}`, weir.Rule{
			Algorithm: weir.FixedWindow, Limits: []weir.Limit{minute(100)}, Override: map[string][]weir.Limit{"k1": {minute(500)}}}},
		{"override without window", `{id: a, limit: 5/minute, override: {k1: {capacity: 1000, refill_rate: 16.67}}}`, weir.Rule{
			Limits: []weir.Limit{minute(5)}, Override: map[string][]weir.Limit{"k1": {{Count: 1000, Window: time.Minute, Burst: 1000, Refill: 16.67}}}}},
		{"candidate", `{id: a, limit: 5/minute, candidate: {limit: 3/minute}}`, weir.Rule{Limits: []weir.Limit{minute(5)}, Candidate: []weir.Limit{minute(3)}}},
		{"candidate, short", `{id: a, limit: 5/minute, candidate: 3/minute}`, weir.Rule{Limits: []weir.Limit{minute(5)}, Candidate: []weir.Limit{minute(3)}}},
		{"by", `{id: a, limit: 5/minute, by: [user, "header:X-Tenant", claim:sub, ip], missing: refuse}`, weir.Rule{
			Limits: []weir.Limit{minute(5)}, By: []string{"user", "header:X-Tenant", "claim:sub", "ip"}, Missing: weir.MissingRefuse}},
		{"by networks", `{id: a, limit: 5/minute, by: [ip], ipv4_prefix: 24, ipv6_prefix: 48}`, weir.Rule{
			Limits: []weir.Limit{minute(5)}, By: []string{"ip"}, IPv4Prefix: 24, IPv6Prefix: 48}},
		{"by nothing", `{id: a, limit: 5/minute, by: [], missing: skip}`, weir.Rule{Limits: []weir.Limit{minute(5)}, By: []string{}, Missing: weir.MissingSkip}},
		{"match", `{id: a, limit: 5/minute, match: {endpoint: "GET /v1/orders/{id}", endpoint_regex: '^/v\d/', api_key_pattern: "sk_*", api_key: present}}`, weir.Rule{
			Limits: []weir.Limit{minute(5)}, Match: weir.Match{Endpoint: "GET /v1/orders/{id}", EndpointRegex: `^/v\d/`, APIKeyPattern: "sk_*", HasKey: true}}},
		{"marks between brackets", `{id: a, limit: 5/minute, match:{endpoint_regex: ^/a/?$}, override: {::1: 6/minute, "k":7/minute}}`, weir.Rule{
			Limits: []weir.Limit{minute(5)}, Match: weir.Match{EndpointRegex: "^/a/?$"}, Override: map[string][]weir.Limit{"::1": {minute(6)}, "k": {minute(7)}}}},
		{"escapes", `{"id": "a", "limit": "5\/minute", "layer": "\u00e9 \ud83d\ude00\"\\\x41", 'match': {api_key_pattern: 'it''s\d'}}`, weir.Rule{
			Limits: []weir.Limit{minute(5)}, Layer: `é 😀"\A`, Match: weir.Match{APIKeyPattern: `it's\d`}}},
		{"absent", `{id: a, limit: 5/minute, match: {api_key: absent}, tier: pro, tiers: {pro: 6/minute}}`, weir.Rule{
			Limits: []weir.Limit{minute(5)}, Match: weir.Match{NoKey: true}, Tier: "pro", Tiers: []weir.Tier{{Name: "pro", Limits: []weir.Limit{minute(6)}}}}},
		{"count", `{id: a, limit: 5/minute, count: {status: [401, 4xx, 5XX, "3xx"]}}`, weir.Rule{Limits: []weir.Limit{minute(5)}, Statuses: []int{401, 4, 5, 3}}},
		{"descriptor", `{id: a, match: {descriptor: [edge, tenant=acme, "path=/a*"]}, limit: 5/minute, past_limit: count}`, weir.Rule{
			Descriptor: []string{"edge", "tenant=acme", "path=/a*"}, Algorithm: weir.FixedWindow, Limits: []weir.Limit{minute(5)}, CountRefused: true}},
		{"descriptor, with its configuration's numbers", `{id: a, match: {descriptor: [edge, tenant]}, on_store_failure: refuse}`, weir.Rule{
			Descriptor: []string{"edge", "tenant"}, Algorithm: weir.FixedWindow, OnStoreFailure: weir.FailRefuse}},
		{"descriptor, with a burst", `{id: a, match: {descriptor: [edge, tenant]}, burst: 3}`, weir.Rule{
			Descriptor: []string{"edge", "tenant"}, Limits: []weir.Limit{{Burst: 3}}}},
		{"the rest", `{id: a, version: 42, limit: 50/minute, cost: 5, strict: true, split: 9, shadow: false, layer: x, on_store_failure: local}`, weir.Rule{
			Version: 42, Limits: []weir.Limit{minute(50)}, Cost: 5, Strict: true, Split: 9, Layer: "x", OnStoreFailure: weir.FailLocal}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, err := Parse("rules.yaml", []byte("rules: ["+tt.rule+"]"))
			if err != nil {
				t.Fatal(err)
			}
			tt.want.ID = "a"
			if got := f.Rules.Rules[0]; !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// TestDocument reads the parts of a document other than rules.
func TestDocument(t *testing.T) {
	f, err := Parse("rules.yaml", []byte(`---
tiers:
  free: 100/minute
  pro: {capacity: 200, refill_rate: 20}
default_tier: pro
keys:
  "sk_b_*": pro
  sk_a_*: free
  "*": pro
rules:
- id: quota
whitelist: []
blacklist:
- 2001:db8::/32
- 203.0.113.7
...
`))
	if err != nil {
		t.Fatal(err)
	}
	want := weir.Rules{
		Tiers: []weir.Tier{
			{Name: "free", Limits: []weir.Limit{{Count: 100, Window: time.Minute}}},
			{Name: "pro", Limits: []weir.Limit{{Count: 200, Window: 10 * time.Second, Burst: 200, Refill: 20}}}},
		DefaultTier: "pro",
		Keys:        []weir.KeyTier{{Pattern: "sk_b_*", Tier: "pro"}, {Pattern: "sk_a_*", Tier: "free"}, {Pattern: "*", Tier: "pro"}},
		Rules:       []weir.Rule{{ID: "quota"}},
		Deny:        []string{"2001:db8::/32", "203.0.113.7"},
	}
	if !reflect.DeepEqual(f.Rules, want) {
		t.Errorf("got  %+v\nwant %+v", f.Rules, want)
	}
}

// TestLayout reads one rule in many equivalent layouts.
func TestLayout(t *testing.T) {
	layouts := map[string]string{
		"block":                 "rules:\n  - id: a\n    by:\n      - user\n      - ip\n    limit: 5/minute\n",
		"dashes under the name": "rules:\n- id: a\n  by:\n  - user\n  - ip\n  limit: 5/minute\n",
		"dash on its own line":  "rules:\n  -\n    id: a\n    by: [user, ip]\n    limit: 5/minute\n",
		"flow":                  "rules: [{id: a, by: [user, ip], limit: 5/minute}]",
		"json":                  `{"rules":[{"id":"a","by":["user","ip"],"limit":"5/minute"}]}`,
		"json, indented":        "{\n\t\"rules\": [\n\t\t{\n\t\t\t\"id\": \"a\",\n\t\t\t\"by\": [\"user\", \"ip\"],\n\t\t\t\"limit\": \"5/minute\"\n\t\t}\n\t]\n}\n",
		"carriage returns":      "# hello\r\nrules: # there\r\n  - id: a\r\n\r\n    by: [user, ip]\r\n    limit: 5/minute\r\n",
		"byte order mark":       "\ufeffrules: [{id: a, by: [user, ip], limit: 5/minute}]",
		"blank lines":           "rules:\n  - id: a\n" + strings.Repeat("\n", 100) + "    by: [user,\n" + strings.Repeat("  \n", 50) + "      ip]\n    limit: 5/minute" + strings.Repeat("\n", 100),
		"tabs between":          "rules:\n  - id:\ta\t# first\n    by: [user,\tip]\n    limit: 5/minute\t\n",
		"comments":              "#\nrules:\n\t# a comment\n  # more\n  - id: a # it's \"here\"\n#\n    by: [user, # one\n      ip] # two\n    limit: 5/minute\n# end",
		"trailing commas":       "rules: [{id: a, by: [user, ip,], limit: 5/minute,},]",
	}
	want := []weir.Rule{{ID: "a", By: []string{"user", "ip"}, Limits: []weir.Limit{{Count: 5, Window: time.Minute}}}}
	for name, text := range layouts {
		f, err := Parse("rules.yaml", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !reflect.DeepEqual(f.Rules.Rules, want) {
			t.Errorf("%s: %+v", name, f.Rules.Rules)
		}
	}
}

func TestWarnings(t *testing.T) {
	f, err := Parse("rules.yaml", []byte(`tiers:
  free: 10/minute
  premium: 100/minute
rules:
  - id: Quota
  - id: search
    limit: 5/minute
    tiers: {premum: 50/minute, staff: 500/minute}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`rules.yaml:3:12: tiers.premium: nobody is in this tier, unless requests carry it`,
		`rules.yaml:5:5: rules[0] "Quota": no rule counts by ip behind it`,
		`rules.yaml:5:9: rules[0] "Quota": id: "Quota" is read as "quota": ids are in lower case`,
		`rules.yaml:8:21: rules[1] "search": tiers.premum: the tier "premum" is not listed under tiers; did you mean "premium"?`,
	}
	for i, w := range f.Warnings {
		if i >= len(want) || !strings.HasPrefix(w.String(), want[i]) {
			t.Errorf("got %s", w)
		}
	}
	if len(f.Warnings) != len(want) {
		t.Errorf("%d warnings, want %d", len(f.Warnings), len(want))
	}
	if id := f.Set.Rules().Rules[0].ID; id != "quota" {
		t.Errorf("the rule is called %q", id)
	}
}
