package rulefile

import (
	"strings"
	"testing"
)

// TestCompare checks the warning about each change to a document.
func TestCompare(t *testing.T) {
	const old = `tiers:
  free: 100/minute
  pro: {limit: 1000/minute, burst: 200}
keys: {"sk_prod_*": pro}
rules:
  - id: quota
  - id: address
    by: [ip]
    limits: [20/second, 5000/hour]
  - id: search
    match: {endpoint: /search}
    limit: 30/minute
    burst: 10
    tiers: {pro: 300/minute}
    override: {vip: {limit: 3000/minute, burst: 500}}
  - id: orders
    params: {capacity: 100, refill_rate: 1.67, window: 60}
`
	tests := []struct{ name, from, to, want string }{
		{"nothing", "", "", ""},
		{"a tier", "100/minute", "49/minute", `rules.yaml:2:9: tiers.free: the limit is cut by more than half, from 100/minute to 49/minute; 50/minute would be half of it, and a ` + "`candidate`" + ` shows whom a limit would refuse`},
		{"by half", "100/minute", "50/minute", ""},
		{"more", "100/minute", "1000/minute", ""},
		{"another unit", "100/minute", "100/hour", `rules.yaml:2:9: tiers.free: the limit is cut by more than half, from 100/minute to 100/hour; did you mean "100/minute"?`},
		{"the same rate", "100/minute", "6000/hour", ""},
		{"a tier's limit in a map", "limit: 1000/minute", "limit: 499/minute", `rules.yaml:3:16: tiers.pro.limit: the limit is cut by more than half, from 1000/minute to 499/minute`},
		{"a tier's burst", "burst: 200", "burst: 99", `rules.yaml:3:36: tiers.pro.burst: the burst is cut by more than half, from 200 to 99; 100 would be half of it`},
		{"one of several", "5000/hour", "500/hour", `rules.yaml:9:25: rules[1] "address": limits[1]: the limit is cut by more than half, from 5000/hour to 500/hour`},
		{"fewer of several", "[20/second, 5000/hour]", "[20/second]", ""},
		{"other windows", "[20/second, 5000/hour]", "[20/minute, 50000/day]", `rules.yaml:9:14: rules[1] "address": limits[0]: the limit is cut by more than half, from 5000/hour to 20/minute`},
		{"a rule", "30/minute", "3/minute", `rules.yaml:12:12: rules[2] "search": limit: the limit is cut by more than half, from 30/minute to 3/minute`},
		{"a rule's burst", "burst: 10", "burst: 4", `rules.yaml:13:12: rules[2] "search": burst: the burst is cut by more than half, from 10 to 4; 5 would be half of it`},
		{"a rule's tier", "300/minute", "30/minute", `rules.yaml:14:18: rules[2] "search": tiers.pro: the limit is cut`},
		{"an override", "3000/minute", "300/minute", `rules.yaml:15:29: rules[2] "search": override.vip.limit: the limit is cut`},
		{"an override less", "    override: {vip: {limit: 3000/minute, burst: 500}}\n", "", ""},
		{"a bucket's rate", "1.67", "0.5", `rules.yaml:17:42: rules[3] "orders": params.refill_rate: the limit is cut by more than half, from 1.67 a second to 0.5 a second; a ` + "`candidate`"},
		{"a bucket", "capacity: 100", "capacity: 10", `rules.yaml:17:24: rules[3] "orders": params.capacity: the burst is cut by more than half, from 100 to 10`},
		{"numbers in place of the tiers'", "id: quota", "{id: quota, limit: 100/minute}", `rules.yaml:6:24: rules[0] "quota": limit: the limit is cut by more than half, from 1000/minute to 100/minute`},
		{"a cost", "    burst: 10\n", "    burst: 10\n    cost: 3\n", `rules.yaml:14:11: rules[2] "search": cost: a request costs 3 and did cost 1`},
		{"one counter for all", "by: [ip]", "by: []", `rules.yaml:8:9: rules[1] "address": by: all clients share one limit now`},
		{"wider networks", "by: [ip]", "by: [ip]\n    ipv4_prefix: 24\n    ipv6_prefix: 64", `rules.yaml:9:18: rules[1] "address": ipv4_prefix: all clients of a /24 share one limit now, and each /32 had its own`},
		{"narrower networks", "by: [ip]", "by: [ip]\n    ipv6_prefix: 128", ""},
		{"keys in another tier", `"sk_prod_*": pro`, `"sk_prod_*": free`, `rules.yaml:4:21: keys.sk_prod_*: these keys were in "pro" and are in "free" now, which cuts them from 1000/minute to 100/minute`},
		{"keys in a higher tier", `"sk_prod_*": pro`, `"sk_prod_*": pro, "sk_*": pro`, ""},
		{"keys whose pattern is gone", `keys: {"sk_prod_*": pro}` + "\n", "", `rules.yaml:1:1: keys: sk_prod_* moves from "pro" to "free", since no pattern matches it as before, which cuts it from 1000/minute to 100/minute; keep the pattern`},
		{"keys whose pattern is another", `"sk_prod_*"`, `"sk_live_*"`, `rules.yaml:4:7: keys: sk_prod_* moves from "pro" to "free"`},
		{"keys whose pattern is narrower", `"sk_prod_*"`, `"sk_prod_1*"`, `rules.yaml:4:7: keys: sk_prod_* moves from "pro" to "free"`},
		{"keys whose pattern is wider", `"sk_prod_*"`, `"sk_*"`, ""},
		{"keys that another pattern takes", `{"sk_prod_*": pro}`, `{"sk_*": free, "sk_prod_*": pro}`, `rules.yaml:4:35: keys.sk_prod_*: these keys were in "pro" and are in "free" now`},
		{"a rule's tier is gone", "    tiers: {pro: 300/minute}\n", "", `rules.yaml:10:5: rules[2] "search": tiers.pro: tier "pro" no longer has numbers of its own here, which cuts it from 300/minute to 30/minute; keep tiers: {pro: 300/minute}`},
		{"another default", "keys:", "default_tier: pro\nkeys:", ""},
		{"a rule that others stand behind", "  - id: orders\n    params: {capacity: 100, refill_rate: 1.67, window: 60}\n", "", ""},
		{"a rule renamed", "id: search", "id: find", ""},
	}
	for _, tt := range tests {
		if tt.from != "" && strings.Count(old, tt.from) != 1 {
			t.Fatalf("%s: %q is there %d times", tt.name, tt.from, strings.Count(old, tt.from))
		}
		checkComparison(t, tt.name, old, strings.Replace(old, tt.from, tt.to, 1), tt.want)
	}
	checkComparison(t, "the first tier", "tiers: {a: 100/m, b: 10/m}\nrules: [{id: q}]", "tiers: {b: 10/m, a: 100/m}\nrules: [{id: q}]",
		`rules.yaml:1:12: tiers.b: requests without a tier were in "a" and are in "b" now, which cuts them from 100/minute to 10/minute; write default_tier: a`)
}

// TestCompareDropped checks the warning about requests that no rule limits after a change.
func TestCompareDropped(t *testing.T) {
	const all, a, b = "{id: all, limit: 5/m}", "{id: a, match: {endpoint: /a}, limit: 5/m}", "{id: b, match: {endpoint: /b/}, limit: 5/m}"
	tests := []struct{ name, old, new, want string }{
		{"the only one", all, "", `rules.yaml:1:8: rules: the rule "all" is gone, and no other limits the requests that it was for; keep it, or add a rule without ` + "`match`"},
		{"one of two", a + "," + b, b, `rules.yaml:1:8: rules: the rule "a" is gone`},
		{"one of two, with one behind", a + "," + all, all, ""},
		{"the one behind", a + "," + all, a, `rules.yaml:1:8: rules: the rule "all" is gone`},
		{"both", a + "," + all, b, `rules.yaml:1:8: rules: the rule "all" is gone`},
		{"a wider one comes", a, "{id: c, match: {endpoint: '/{x}'}, limit: 5/m}", ""},
		{"narrower", all, "{id: all, limit: 5/m, match: {endpoint: /a}}", `rules.yaml:1:9: rules[0] "all": the rule is for less than it was, and no other limits the rest`},
		{"shadow", all, "{id: all, limit: 5/m, shadow: true}", `rules.yaml:1:39: rules[0] "all": shadow: the rule refuses nobody now`},
		{"skips", all, "{id: all, limit: 5/m, missing: skip}", `rules.yaml:1:9: rules[0] "all": the rule is for less than it was`},
		{"skipped before", "{id: all, limit: 5/m, missing: skip}", "{id: all, limit: 5/m, missing: skip}", ""},
		{"shadow before", "{id: all, limit: 5/m, shadow: true}", "", ""},
	}
	for _, tt := range tests {
		checkComparison(t, tt.name, "rules: ["+tt.old+"]", "rules: ["+tt.new+"]", tt.want)
	}
}

func checkComparison(t *testing.T, name, old, text, want string) {
	t.Helper()
	before, err := Parse("rules.yaml", []byte(old))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	after, err := Parse("rules.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
	got := Compare(before, after)
	switch {
	case want == "" && len(got) > 0:
		t.Errorf("%s: got %v", name, got)
	case want != "" && (len(got) != 1 || !strings.HasPrefix(got[0].String(), want)):
		t.Errorf("%s: got %v\nwant %s", name, got, want)
	case want != "" && got[0].Hint == "":
		t.Errorf("%s: no suggestion", name)
	}
}
