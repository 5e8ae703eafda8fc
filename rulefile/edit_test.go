package rulefile

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// These functions write edits in a short form for the tests' tables.
func setTier(tier string, n Numbers) func([]byte) ([]byte, error) {
	return func(text []byte) ([]byte, error) { return SetTier(text, tier, n) }
}

func putRule(id, rule string) func([]byte) ([]byte, error) {
	return func(text []byte) ([]byte, error) { return PutRule(text, id, []byte(rule)) }
}

func deleteRule(id string) func([]byte) ([]byte, error) {
	return func(text []byte) ([]byte, error) { return DeleteRule(text, id) }
}

func setOverride(rule, key string, n Numbers) func([]byte) ([]byte, error) {
	return func(text []byte) ([]byte, error) { return SetOverride(text, rule, key, n) }
}

func deleteOverride(rule, key string) func([]byte) ([]byte, error) {
	return func(text []byte) ([]byte, error) { return DeleteOverride(text, rule, key) }
}

func setList(list List, entries ...string) func([]byte) ([]byte, error) {
	return func(text []byte) ([]byte, error) { return SetList(text, list, entries) }
}

var noon = time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)

// document has comments in all the places where people put them.
const document = `# Limits of the shop.
tiers:            # see the price list
  free: 100/minute
  pro: {limit: 1000/minute, burst: 200}   # paying
  'max': "5000 per minute"
keys:
  "sk_prod_*": pro

rules:
  # everyone
  - id: quota
  - id: search   # expensive
    match: {endpoint: "/v1/search"}
    limit: 30/minute   # was 20

    # the big ones
    override:
      sk_a: 300/minute  # until they move
      "sk_b": {limit: 3000/minute, burst: 500}
  # the old form
  - id: orders
    tier: pro
    params: {capacity: 100, refill_rate: 1.67, window: 60}
  - {id: address, by: [api_key, ip], limits: [20/second, 5000/hour]}
whitelist:
  - sk_internal_1   # monitoring
  - "sk_internal_*"
blacklist: ["sk_revoked_*", 203.0.113.0/24] # abuse
`

// TestEdits checks which lines each edit removes and adds. All other lines must stay.
func TestEdits(t *testing.T) {
	tests := []struct {
		name string
		edit func([]byte) ([]byte, error)
		want string
	}{
		{"a tier's limit", setTier("free", Numbers{Limit: "500"}), `
-  free: 100/minute
+  free: 500/minute
`},
		{"a tier's limit over another window", setTier("free", Numbers{Limit: "10/15m"}), `
-  free: 100/minute
+  free: 10/15m
`},
		{"a tier's limit and burst, where the burst is the limit", setTier("free", Numbers{Limit: "500/minute", Capacity: 500}), `
-  free: 100/minute
+  free: 500/minute
`},
		{"a tier's burst", setTier("free", Numbers{Capacity: 20}), `
-  free: 100/minute
+  free: {limit: 100/minute, burst: 20}
`},
		{"a tier in its own words", setTier("max", Numbers{Limit: "9000"}), `
-  'max': "5000 per minute"
+  'max': "9000 per minute"
`},
		{"a tier, and the rule that is for it", setTier("pro", Numbers{Limit: "480", Capacity: 500}), `
-  pro: {limit: 1000/minute, burst: 200}   # paying
+  pro: {limit: 480/minute, burst: 500}   # paying
-    params: {capacity: 100, refill_rate: 1.67, window: 60}
+    params: {capacity: 500, refill_rate: 8, window: 60}
`},
		{"a new override", setOverride("orders", "sk_c", Numbers{Limit: "3000/minute", Capacity: 500}), `
+    override:
+      sk_c: {limit: 3000/minute, burst: 500}
`},
		{"a new override among others", setOverride("search", "sk c: d", Numbers{Limit: "60", Expires: noon}), `
+      "sk c: d": {limit: 60/minute, expires: 2026-11-16T12:00:00Z}
`},
		{"a new override between braces", setOverride("address", "sk_c", Numbers{Limit: "60/minute"}), `
-  - {id: address, by: [api_key, ip], limits: [20/second, 5000/hour]}
+  - {id: address, by: [api_key, ip], limits: [20/second, 5000/hour], override: {sk_c: 60/minute}}
`},
		{"an override that is there", setOverride("search", "sk_a", Numbers{Limit: "600"}), `
-      sk_a: 300/minute  # until they move
+      sk_a: 600/minute  # until they move
`},
		{"an override that will expire", setOverride("search", "sk_b", Numbers{Limit: "600", Expires: noon}), `
-      "sk_b": {limit: 3000/minute, burst: 500}
+      "sk_b": {limit: 600/minute, burst: 500, expires: 2026-11-16T12:00:00Z}
`},
		{"one override less", deleteOverride("search", "sk_a"), `
-      sk_a: 300/minute  # until they move
`},
		{"a list that grows", setList(Allowlist, "sk_internal_1", "sk_internal_*", "10.0.0.0/8"), `
+  - "10.0.0.0/8"
`},
		{"a list that shrinks", setList(Allowlist, "sk_internal_*"), `
-  - sk_internal_1   # monitoring
`},
		{"an empty list", setList(Allowlist), `
-whitelist:
-  - sk_internal_1   # monitoring
-  - "sk_internal_*"
+whitelist: []
`},
		{"other entries", setList(Allowlist, "a"), `
-  - sk_internal_1   # monitoring
-  - "sk_internal_*"
+  - "a"
`},
		{"a list between brackets", setList(Denylist, "203.0.113.0/24", "2001:db8::/32"), `
-blacklist: ["sk_revoked_*", 203.0.113.0/24] # abuse
+blacklist: [203.0.113.0/24, "2001:db8::/32"] # abuse
`},
		{"another list between brackets", setList(Denylist, "x", "z"), `
-blacklist: ["sk_revoked_*", 203.0.113.0/24] # abuse
+blacklist: [x, z] # abuse
`},
		{"an empty list between brackets", setList(Denylist), `
-blacklist: ["sk_revoked_*", 203.0.113.0/24] # abuse
+blacklist: [] # abuse
`},
		{"one rule less", deleteRule("search"), `
-  - id: search   # expensive
-    match: {endpoint: "/v1/search"}
-    limit: 30/minute   # was 20
-
-    # the big ones
-    override:
-      sk_a: 300/minute  # until they move
-      "sk_b": {limit: 3000/minute, burst: 500}
`},
		{"a new rule", putRule("login", `{"limit": "5/15m", "by": ["user"], "match": {"endpoint": "POST /login"}}`), `
+  - id: login
+    limit: 5/15m
+    by: [user]
+    match: {endpoint: "POST /login"}
`},
		{"a new rule with comments", putRule("login", "# how to log in\nby: [user]   # not the key\nmatch:\n  endpoint: POST /login\nlimit: 5/15m\n"), `
+  - id: login
+    by: [user]   # not the key
+    match:
+      endpoint: POST /login
+    limit: 5/15m
`},
		{"another field", putRule("orders", `{"id": "orders", "tier": "pro", "cost": 5, "params": {"capacity": 100, "refill_rate": 1.67, "window": 30}}`), `
-    params: {capacity: 100, refill_rate: 1.67, window: 60}
+    params: {capacity: 100, refill_rate: 1.67, window: 30}
+    cost: 5
`},
		{"fewer fields", putRule("search", `{"limit": "30/minute", "override": {"sk_b": {"limit": "3000/minute"}}}`), `
-    match: {endpoint: "/v1/search"}
-      sk_a: 300/minute  # until they move
-      "sk_b": {limit: 3000/minute, burst: 500}
+      "sk_b": {limit: 3000/minute}
`},
		{"the same rule", putRule("SEARCH", `{"override": {"sk_b": {"burst": 500, "limit": "3000/minute"}, "sk_a": "300/minute"}, "limit": "30/minute", "match": {"endpoint": "/v1/search"}}`), "\n"},
		{"a rule in other words", putRule("orders", "id: orders # new\nlimit: 5/m"), `
-  - id: orders
-    tier: pro
-    params: {capacity: 100, refill_rate: 1.67, window: 60}
+  - id: orders # new
+    limit: 5/m
`},
	}
	for _, tt := range tests {
		for _, eol := range []string{"\n", "\r\n"} {
			got, err := tt.edit([]byte(strings.ReplaceAll(document, "\n", eol)))
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
				continue
			}
			if n := strings.Count(string(got), "\n"); eol == "\r\n" && n != strings.Count(string(got), eol) {
				t.Errorf("%s: mixes line ends: %q", tt.name, got)
			}
			if diff := lineDiff(document, strings.ReplaceAll(string(got), eol, "\n")); diff != tt.want[1:] {
				t.Errorf("%s: got\n%swant%s", tt.name, diff, tt.want)
			}
		}
	}
}

// lineDiff returns the lines that differ, in a minimal diff.
func lineDiff(a, b string) string {
	x, y := strings.SplitAfter(a, "\n"), strings.SplitAfter(b, "\n")
	common := make([][]int, len(x)+1) // lengths of the longest common sequences of the lines from here on
	for i := range common {
		common[i] = make([]int, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out strings.Builder
	for i, j := 0, 0; i < len(x) || j < len(y); {
		switch {
		case i < len(x) && j < len(y) && x[i] == y[j]:
			i++
			j++
		case i < len(x) && (j == len(y) || common[i+1][j] >= common[i][j+1]):
			out.WriteString("-" + x[i])
			i++
		default:
			out.WriteString("+" + y[j])
			j++
		}
	}
	return out.String()
}

// TestEditShapes makes the same edits in texts of other layouts.
func TestEditShapes(t *testing.T) {
	tests := []struct {
		name, text string
		edit       func([]byte) ([]byte, error)
		want       string
	}{
		{"compact JSON", `{"tiers":{"free":"5/m"},"rules":[{"id":"a","tier":"free","limit":"7/m"}]}`, setTier("free", Numbers{Limit: "9", Capacity: 4}),
			`{"tiers":{"free":{"limit":"9/minute","burst":4}},"rules":[{"id":"a","tier":"free","limit":"9/m","burst":4}]}`},
		{"JSON on lines", "{\n\t\"rules\": [\n\t\t{\n\t\t\t\"id\": \"a\",\n\t\t\t\"limit\": \"7/m\"\n\t\t}\n\t]\n}\n", setOverride("a", "k", Numbers{Limit: "9", Expires: noon}),
			"{\n\t\"rules\": [\n\t\t{\n\t\t\t\"id\": \"a\",\n\t\t\t\"limit\": \"7/m\",\n\t\t\t\"override\": {\"k\": {\"limit\": \"9/minute\", \"expires\": \"2026-11-16T12:00:00Z\"}}\n\t\t}\n\t]\n}\n"},
		{"one of two in JSON", "{\"rules\": [\n  {\"id\": \"a\", \"limit\": \"7/m\"},\n  {\"id\": \"b\", \"limit\": \"7/m\"}\n]}", deleteRule("b"),
			"{\"rules\": [\n  {\"id\": \"a\", \"limit\": \"7/m\"}\n]}"},
		{"the first of two in JSON", "{\"rules\": [\n  {\"id\": \"a\", \"limit\": \"7/m\"},\n  {\"id\": \"b\", \"limit\": \"7/m\"}\n]}", deleteRule("a"),
			"{\"rules\": [\n  {\"id\": \"b\", \"limit\": \"7/m\"}\n]}"},
		{"a rule from YAML into JSON", `{"rules": [{"id": "a", "limit": "7/m"}]}`, putRule("b", "limit: 5/m\nburst: 1_000\nstrict: True\nby: [ip]"),
			`{"rules": [{"id": "a", "limit": "7/m"}, {"id": "b", "limit": "5/m", "burst": 1000, "strict": true, "by": ["ip"]}]}`},
		{"the only rule", "rules: # none\n  - id: a\n    limit: 5/m\n# end\n", deleteRule("a"), "rules: [] # none\n# end\n"},
		{"the only rule between brackets", "rules: [ {id: a, limit: 5/m} ]", deleteRule("a"), "rules: [ ]"},
		{"the first rule", "rules: []", putRule("a", "limit: 5/m"), "rules: [{id: a, limit: 5/m}]"},
		{"no line end", "rules:\n- id: a\n  limit: 5/m", putRule("b", "limit: 6/m"), "rules:\n- id: a\n  limit: 5/m\n- id: b\n  limit: 6/m"},
		{"no line end, one less", "rules:\n- id: a\n  limit: 5/m\n- {id: b, limit: 5/m}", deleteRule("b"), "rules:\n- id: a\n  limit: 5/m"},
		{"a byte order mark", "\ufeffrules: [{id: a, limit: 5/m}]", putRule("b", "limit: 5/m"), "\ufeffrules: [{id: a, limit: 5/m}, {id: b, limit: 5/m}]"},
		{"characters", "rules: [{id: a, match: {endpoint: /ä/€}, limit: 5/m, burst: 7}] # ü\n", setOverride("a", "clé", Numbers{Capacity: 3}),
			"rules: [{id: a, match: {endpoint: /ä/€}, limit: 5/m, burst: 7, override: {\"clé\": {limit: 5/minute, burst: 3}}}] # ü\n"},
		{"an override that ends the rule", "rules:\n- id: a\n  limit: 5/m\n  override:\n    k: 5/m # x\n  # y\n", deleteOverride("a", "k"), "rules:\n- id: a\n  limit: 5/m\n  # y\n"},
		{"an override that begins the rule", "rules:\n- override: {k: 5/m}\n  id: a\n  limit: 5/m\n", deleteOverride("a", "k"), "rules:\n- id: a\n  limit: 5/m\n"},
		{"an override of three", "rules: [{id: a, limit: 5/m, override: {x: 1/m, y: 2/m, z: 3/m}}]", deleteOverride("a", "y"), "rules: [{id: a, limit: 5/m, override: {x: 1/m, z: 3/m}}]"},
		{"for ever again", "rules: [{id: a, limit: 5/m, override: {x: {expires: 2026-11-16T12:00:00Z, limit: 5/m}}}]", setOverride("a", "x", Numbers{Limit: "6"}),
			"rules: [{id: a, limit: 5/m, override: {x: {limit: 6/m}}}]"},
		{"for longer", "rules: [{id: a, limit: 5/m, override: {x: {expires: '2026-11-15T12:00:00+01:00', limit: 5/m}}}]", setOverride("a", "x", Numbers{Limit: "6", Expires: noon.Add(-time.Millisecond)}),
			"rules: [{id: a, limit: 5/m, override: {x: {expires: '2026-11-16T12:00:00Z', limit: 6/m}}}]"},
		{"for ever, with a burst", "rules: [{id: a, limit: 5/m, override: {x: {limit: 5/m, expires: 2026-11-16T12:00:00Z}}}]", setOverride("a", "x", Numbers{Limit: "6", Capacity: 3}),
			"rules: [{id: a, limit: 5/m, override: {x: {limit: 6/m, burst: 3}}}]"},
		{"for ever on lines, with a burst", "rules:\n- id: a\n  limit: 5/m\n  override:\n    x:\n      limit: 5/m\n      expires: 2026-11-16T12:00:00Z # moving\n", setOverride("a", "x", Numbers{Limit: "6", Capacity: 3}),
			"rules:\n- id: a\n  limit: 5/m\n  override:\n    x:\n      limit: 6/m\n      burst: 3\n"},
		{"for ever in JSON, with a burst", `{"rules":[{"id":"a","limit":"5/m","override":{"x":{"limit":"5/m","expires":"2026-11-16T12:00:00Z"}}}]}`, setOverride("a", "x", Numbers{Limit: "6", Capacity: 3}),
			`{"rules":[{"id":"a","limit":"5/m","override":{"x":{"limit":"6/m","burst":3}}}]}`},
		{"for ever, with a rate", "rules: [{id: a, limit: 5/m, override: {x: {capacity: 5, expires: 2026-11-16T12:00:00Z, window: 60}}}]", setOverride("a", "x", Numbers{Capacity: 10}),
			"rules: [{id: a, limit: 5/m, override: {x: {capacity: 10, refill_rate: 0.08333333333333333, window: 60}}}]"},
		{"until the same time", "rules: [{id: a, limit: 5/m, override: {x: {limit: 5/m, expires: 2026-11-16T13:00:00+01:00}}}]", setOverride("a", "x", Numbers{Limit: "6", Capacity: 3, Expires: noon}),
			"rules: [{id: a, limit: 5/m, override: {x: {limit: 6/m, burst: 3, expires: 2026-11-16T13:00:00+01:00}}}]"},
		{"a burst that is a part follows the limit", "tiers: {t: {limit: 60/m, burst: 1/6}}\nrules: [{id: a}]", setTier("t", Numbers{Limit: "120"}), "tiers: {t: {limit: 120/m, burst: 1/6}}\nrules: [{id: a}]"},
		{"a burst in place of a part", "tiers: {t: {limit: 60/m, burst: 1/6}}\nrules: [{id: a}]", setTier("t", Numbers{Limit: "120", Capacity: 10}), "tiers: {t: {limit: 120/m, burst: 10}}\nrules: [{id: a}]"},
		{"a count and a window", "tiers: {t: {limit: 5, window: 60}}\nrules: [{id: a}]", setTier("t", Numbers{Limit: "7/s"}), "tiers: {t: {limit: 7, window: 1}}\nrules: [{id: a}]"},
		{"a count over the rule's window", "rules: [{id: a, params: {capacity: 5, window: 60}, override: {x: 7}}]", setOverride("a", "x", Numbers{Limit: "8"}), "rules: [{id: a, params: {capacity: 5, window: 60}, override: {x: 8}}]"},
		{"a count over another window", "rules: [{id: a, params: {capacity: 5, window: 60}, override: {x: 7}}]", setOverride("a", "x", Numbers{Limit: "8/h"}), "rules: [{id: a, params: {capacity: 5, window: 60}, override: {x: 8/hour}}]"},
		{"a bucket without a window", "tiers: {t: {capacity: 10, refill_rate: 0.5}}\nrules: [{id: a}]", setTier("t", Numbers{Limit: "4/s"}), "tiers: {t: {capacity: 10, refill_rate: 4}}\nrules: [{id: a}]"},
		{"a bucket without a rate", "tiers: {t: {capacity: 10, window: 10}}\nrules: [{id: a}]", setTier("t", Numbers{Capacity: 20}), "tiers: {t: {capacity: 20, refill_rate: 1, window: 10}}\nrules: [{id: a}]"},
		{"a bucket with both", "tiers: {t: {capacity: 10, window: 10}}\nrules: [{id: a}]", setTier("t", Numbers{Limit: "20", Capacity: 20}), "tiers: {t: {capacity: 20, window: 10}}\nrules: [{id: a}]"},
		{"a bucket for a key", "rules: [{id: a, params: {capacity: 5, refill_rate: 1.5}}]", setOverride("a", "x", Numbers{Capacity: 9}), "rules: [{id: a, params: {capacity: 5, refill_rate: 1.5}, override: {x: {capacity: 9, refill_rate: 1.5, window: 4}}}]"},
		{"one of several limits", "tiers:\n  t:\n    limits:\n    - 5/s # short\n    - {limit: 9/h}\nrules: [{id: a}]", setTier("t", Numbers{Limit: "7/second"}), "tiers:\n  t:\n    limits:\n    - 7/s # short\n    - {limit: 9/h}\nrules: [{id: a}]"},
		{"a window has no burst", "tiers: {t: 5/m}\nrules: [{id: a, tier: t, algorithm: fixed_window, limit: 6/m}]", setTier("t", Numbers{Limit: "7", Capacity: 3}), "tiers: {t: {limit: 7/minute, burst: 3}}\nrules: [{id: a, tier: t, algorithm: fixed_window, limit: 7/m}]"},
		{"entries on lines between brackets", "rules: []\nwhitelist: [\n  a, # one\n  b,\n  # three\n  c # last\n]\n", setList(Allowlist, "c"), "rules: []\nwhitelist: [\n  # three\n  c # last\n]\n"},
		{"the last entries on lines", "rules: []\nwhitelist: [\n  a, # one\n  b,\n  c, # last\n]\n", setList(Allowlist, "a"), "rules: []\nwhitelist: [\n  a # one\n]\n"},
		{"no list yet", "rules: []\n# end\n", setList(Denylist, "a", "a", "b*"), "rules: []\nblacklist: [a, \"b*\"]\n# end\n"},
		{"no list yet beside the other one", "rules: []\ndeny: [x]\n", setList(Allowlist, "a"), "rules: []\ndeny: [x]\nallow: [a]\n"},
		{"no list yet beside the other one's alias", "rules: []\nblacklist: [x]\n", setList(Allowlist, "a"), "rules: []\nblacklist: [x]\nwhitelist: [a]\n"},
		{"a list by its first name", "rules: []\ndeny: [x] # leaked\n", setList(Denylist, "x", "z"), "rules: []\ndeny: [x, z] # leaked\n"},
		{"entries into an empty list", "rules: []\nblacklist: []\n", setList(Denylist, "a", "b"), "rules: []\nblacklist: [a, b]\n"},
		{"an entry that was there twice", "rules: []\nblacklist: [a, b, a]\n", setList(Denylist, "a", "b"), "rules: []\nblacklist: [a, b]\n"},
		{"the same list", "rules: []\nblacklist: [ a,b ]\n", setList(Denylist, "b", "a"), "rules: []\nblacklist: [ a,b ]\n"},
	}
	for _, tt := range tests {
		got, err := tt.edit([]byte(tt.text))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s\n%v", tt.name, got, tt.want, err)
		}
	}
}

// TestEditRefusals checks the errors of impossible edits, which say what is possible instead.
func TestEditRefusals(t *testing.T) {
	tests := []struct {
		name     string
		edit     func([]byte) ([]byte, error)
		want     string
		notFound bool
	}{
		{"no such tier", setTier("por", Numbers{Limit: "5"}), `there is no tier "por": the tiers are free, pro, max; did you mean "pro"?`, true},
		{"no such rule", deleteRule("serach"), `there is no rule "serach": the rules are quota, search, orders, address; did you mean "search"?`, true},
		{"no such rule for an override", setOverride("x", "k", Numbers{Limit: "5"}), `there is no rule "x": the rules are quota, search, orders, address`, true},
		{"no such override", deleteOverride("search", "sk_z"), `the rule "search" has no override for this key`, true},
		{"nothing to set", setTier("pro", Numbers{}), `there is nothing to set: give a limit such as "500/minute", or a capacity`, false},
		{"a zero limit", setTier("pro", Numbers{Limit: "0"}), "limit: must be at least 1, got 0", false},
		{"a limit that is none", setTier("pro", Numbers{Limit: "many"}), `limit: must be a count and a window such as "100/minute" or "5/15m", got "many"`, false},
		{"a negative capacity", setTier("pro", Numbers{Capacity: -1}), "capacity: must be at least 1, got -1", false},
		{"a tier that expires", setTier("pro", Numbers{Limit: "5", Expires: noon}), "a tier doesn't expire: leave the time out, or set an override for a key", false},
		{"no window to take", setOverride("quota", "k", Numbers{Limit: "5"}), `limit: needs a window, as in "5/minute": the rule "quota" has no limit of its own to take it from`, false},
		{"no limit to take", setOverride("address", "k", Numbers{Capacity: 5}), `needs a limit such as "500/minute" beside the capacity: the rule "address" has several limits, and no single one to take it from`, false},
		{"a pattern", setOverride("search", "sk_*", Numbers{Limit: "5"}), `rules:20:7: rules[1] "search": override.sk_*: an override is for one key, and "sk_*" is a pattern`, false},
		{"another id", putRule("search", "{id: serach, limit: 5/m}"), `rule:1:6: id: must be "search", or be left out: a rule keeps its id, got "serach"`, false},
		{"an id that can't be", putRule("a b", "limit: 5/m"), `rules:25:9: rules[4] "a b": id: must be of a-z, 0-9, _ and - only, got "a b"`, false},
		{"a rule with an unknown field", putRule("search", "{limit: 5/m, brust: 3}"), `rule:1:14: brust: a rule has no field "brust"`, false},
		{"a rule that is a list", putRule("search", "[]"), "rule:1:1: must be a map of fields", false},
		{"a rule that is nothing", putRule("search", "# nothing"), "rule: is empty", false},
		{"a rule for no tier", putRule("search", "{limit: 5/m, tier: gone}"), `rules:`, false},
		{"an empty entry", setList(Denylist, " "), "rules:28:13: blacklist[0]: must not be empty", false},
	}
	for _, tt := range tests {
		got, err := tt.edit([]byte(document))
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) || errors.Is(err, ErrNotFound) != tt.notFound {
			t.Errorf("%s: want %s, got %v\n%s", tt.name, tt.want, err, got)
		}
	}
	if _, err := SetTier([]byte("rules: [{id: a}]\ntiers: {t: {limits: [5/s, 7/h]}}"), "t", Numbers{Limit: "5/m"}); err == nil ||
		err.Error() != `the tier "t" has several limits, over second, hour: name the one to change, as in "500/second"` {
		t.Errorf("several limits: %v", err)
	}
	if _, err := DeleteRule([]byte("rules: []"), "a"); !errors.Is(err, ErrNotFound) || err.Error() != `there is no rule "a": there are none` {
		t.Errorf("no rules: %v", err)
	}
	// If others inherit a window, it can't be changed for just one of them.
	inherited := "tiers: {t: 5/m}\nrules: [{id: a, tier: t, params: {limit: 5, window: 60}, override: {k: 7}}]"
	if _, err := SetTier([]byte(inherited), "t", Numbers{Limit: "5/h"}); err == nil || !strings.Contains(err.Error(), "something else would change with it") {
		t.Errorf("an inherited window: %v", err)
	}
}

// TestExpiredOverridesAreDropped checks that expired overrides are dropped, and nothing else.
func TestExpiredOverridesAreDropped(t *testing.T) {
	const text = `rules:
  - id: a   # one
    limit: 5/s
    override:
      old: {limit: 9/s, expires: 2026-01-01T00:00:00Z}
      new: {limit: 8/s, expires: 2026-03-01T00:00:00Z}
      kept: 7/s
  - id: b
    limit: 5/s
    override: {old: {limit: 9/s, expires: 2026-01-01T00:00:00Z}}
`
	got, err := DropExpired([]byte(text), time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	if s := string(got); strings.Contains(s, "old") || !strings.Contains(s, "# one") || !strings.Contains(s, "new: {limit: 8/s") || !strings.Contains(s, "kept: 7/s") {
		t.Errorf("got\n%s", s)
	}
	f, err := ParseAt("rules", []byte(text), time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]time.Time{"old": {}, "new": time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), "kept": {}, "none": {}} {
		if at := f.Expiry("A", key); !at.Equal(want) {
			t.Errorf("%s ends at %s", key, at)
		}
	}
	if again, err := DropExpired(got, time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)); err != nil || string(again) != string(got) {
		t.Errorf("again: %v\n%s", err, again)
	}
}
