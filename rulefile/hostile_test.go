package rulefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// repeat returns a text of about the given size.
func repeat(before, unit, after string, size int) string {
	return before + strings.Repeat(unit, (size-len(before)-len(after))/len(unit)) + after
}

// numbered returns n lines, each with a number in it.
func numbered(before, format string, n int) string {
	var b strings.Builder
	b.WriteString(before)
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// hostileText is invalid on purpose, or takes much more work than its length suggests.
type hostileText struct{ name, text, want string }

func hostileTexts() []hostileText {
	const mib = 1 << 20
	return []hostileText{
		{"too long", repeat("", "# a comment\n", "", 10*mib), "is too large: a rule file has at most 4 MiB"},
		{"laughs", numbered("a0: &a0 [lol]\n", "b%[1]d: &b%[1]d [*a0, *a0, *a0, *a0, *a0, *a0, *a0, *a0, *a0]\n", 9) + "rules: *b8\n", "rules.yaml:1:5: anchors (&a0) are no part of the rule language"},
		{"merged laughs", "a: &a {b: c}\nrules: [{<<: *a, id: x}]\n", "rules.yaml:1:4: anchors"},
		{"blank fields", "tiers:\nkeys:\nrules:\n  - id:\n    limit:\n    match: {endpoint: ''}\n", "rules.yaml:1:1: tiers: needs a value"},
		{"blank text", "rules:\n  - id: a\n    limit: 5/m\n    layer: ''\n", `rules.yaml:4:12: rules[0] "a": layer: must not be empty`},
		{"a zero limit", "rules:\n  - id: a\n    limit: 0/minute\n", `rules.yaml:3:12: rules[0] "a": limit: must be at least 1, got 0`},
		{"a zero count", "rules:\n  - id: a\n    params: {limit: 0, window: 60}\n", `rules.yaml:3:21: rules[0] "a": params.limit: must be at least 1, got 0`},
		{"an empty bucket", "rules:\n  - id: a\n    params: {capacity: 0, refill_rate: 1}\n", `rules.yaml:3:24: rules[0] "a": params.capacity: must be at least 1, got 0`},
		{"a capacity below the cost", "rules:\n  - id: a\n    cost: 5\n    limit: 100/m\n    burst: 4\n", `rules.yaml:4:12: rules[0] "a": refuses everything: a request costs 5 and at most 4 fit`},
		{"an override below the cost", "rules:\n  - id: a\n    cost: 5\n    limit: 100/m\n    override: {k: 4/m}\n", `rules.yaml:5:19: rules[0] "a": override.k: refuses everything`},
		{"a tier below the cost", "tiers: {free: 4/m}\nrules:\n  - id: a\n    cost: 5\n", `refuses everything: a request costs 5 and at most 4 fit`},
		{"an unknown field", "rules:\n  - id: a\n    limit: 5/m\n    brust: 3\n", `rules.yaml:4:5: rules[0] "a": brust: a rule has no field "brust"`},
		{"no time", "rules:\n  - id: a\n    limit: 5/m\n    override: {k: {limit: 5/m, expires: tomorrow}}\n", `rules.yaml:4:41: rules[0] "a": override.k.expires: must be a time such as 2026-01-31T12:00:00Z, got "tomorrow"`},
		{"layers", numbered("rules:\n", "- {id: r%[1]d, limit: 5/m, layer: x, match: {api_key_pattern: '*%[1]d*'}}\n", 1_000) + "- {id: y, limit: 5/q}", "rules[1000]"},
		{"layers of long endpoints", numbered("rules:\n", "- {id: r%[1]d, limit: 5/m, layer: x, match: {endpoint: "+strings.Repeat("/a", 100)+"/%[1]d}}\n", 1_000),
			`rules[815] "r815": layer: the layers up to here have too many rules for such long endpoints: give them more layers`},
		{"brackets", repeat("", "[", "", mib), "nested"},
		{"brackets and back", strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), "nested"},
		{"braces", repeat("", "{a: ", "", mib), "nested"},
		{"dashes", repeat("", "- ", "", 400_000), "nested"},
		{"names on one line", repeat("", "a: ", "", 300_000), "a field's value can't be another field on the same line"},
		{"staircase", func() string {
			var b strings.Builder
			for i := range 1500 {
				b.WriteString(strings.Repeat(" ", i) + "a:\n")
			}
			return b.String()
		}(), "nested"},
		{"angles", repeat("a: ", "<", "", 4*mib), `no field "a"`},
		{"tabs in quotes", repeat(`a: "`, "\t", `"`, 4*mib), "write a space in place of this tab"},
		{"tabs in text", repeat("a: b", "\t", "c", 4*mib), "write a space in place of this tab"},
		{"blank lines in a block", "a: |\n  " + strings.Repeat("a", 2*mib) + strings.Repeat("\n", 200_000) + "b: c\n", "blocks of text"},
		{"spaces", repeat("a: b", " ", "c", 4*mib), `no field "a"`},
		{"empty values", repeat("", "a:\n", "", 300_000), "is written twice"},
		{"empty values in braces", repeat("a: {", "a,", "}", 400_000), `no field "a"`},
		{"empty values in many braces", repeat("a: [", "{a},", "]", 200_000), `no field "a"`},
		{"fields", numbered("", "a%d: b\n", 60_000), `no field "a0"`},
		{"long name over many", strings.Repeat("k", 2*mib) + ": {" + strings.Repeat("a: b, ", 70_000) + "}\n", "a name has at most 1024 characters"},
		{"documents", repeat("", "---\n", "", 200_000), "one document"},
		{"aliases", "a: &a [b]\nb: [" + strings.Repeat("*a, ", 50_000) + "]\n", "anchors"},
		{"quotes", repeat("a: ", `"" `, "", 200_000), "doesn't belong here"},
		{"one open quote", repeat("a: '", "b\n", "", 200_000), "never closed"},
		{"comments", repeat("", "#\n", "", 200_000), "is empty"},
		{"unknown fields on one line", repeat("{", "b: c, ", "}", 400_000), "is written twice"},
		{"rules", numbered("rules:\n", "- {id: r%d, limit: 5/m}\n", 10_001), "must be at most 10000 rules"},
		{"a layer", numbered("rules:\n", "- {id: r%d, limit: 5/m, layer: x}\n", 1_001), "at most 1000 rules can share a layer"},
		{"expressions", numbered("rules:\n", "- {id: r%d, limit: 5/m, match: {endpoint_regex: '(.{99}){10}'}}\n", 1_000), "regular expressions up to here are too large"},
		{"tiers for rules", numbered(numbered("tiers:\n", "  t%d: 5/m\n", 2_000)+"rules:\n", "- id: r%d\n", 2_000), "too many rules without numbers for so many tiers"},
		{"unknown tiers", numbered(numbered("tiers:\n", "  tier%d: 5/m\n", 2_000)+"rules: []\nkeys:\n", "  k%d: teir\n", 8_000), `there is no tier "teir"`},
		{"prices", numbered("rules: []\nprices:\n", "  m%d: {input: 1}\n", 1_001), "must be at most 1000 prices, got 1001"},
		{"weights", numbered("rules: []\nweights:\n", "  m%d: {input: 1}\n", 1_001), "must be at most 1000 weights, got 1001"},
		{"parts of a price", "rules: []\nprices: {m: {" + numbered("", "a%d: 1, ", 65) + "}}", "must be at most 64 amounts, got 65"},
		{"a long price", "rules: []\nprices: {m: {a: " + strings.Repeat("9", mib) + "/1M}}", "must be a number from 0 to 1000000"},
		{"a price of many digits", "rules: []\nprices: {m: {a: 0." + strings.Repeat("0", mib) + "1}}", "must be a number from 0 to 1000000"},
		{"a long amount", "rules: [{id: a, limit: 5/m, amount: tokens, default: 1" + strings.Repeat("0", mib) + "}]", "default: must be a number such as 1500 or 0.012, got"},
		{"a long zone", "rules: [{id: a, limit: 5/month, calendar: {tz: " + strings.Repeat("x/", mib/2) + "}}]", "there is no time zone"},
		{"limits", "rules: [{id: a, limits: [" + numbered("", "5/%ds, ", 1_000) + "]}]", "must be at most 16 limits, got 1000"},
		{"deep expression", "rules: [{id: a, limit: 5/m, match: {endpoint_regex: '" + strings.Repeat("(", 100_000) + "'}}]", "endpoint_regex"},
		{"long names everywhere", "rules: [{id: a, limit: 5/m, by: [" + strings.Repeat("x", mib) + "]}]", "by[0]"},
		{"a long key", "rules: [{id: a, limit: 5/m, override: {" + strings.Repeat("x", maxName) + ": 5/q}}]", "override.xxx"},
		{"a longer key", "rules: [{id: a, limit: 5/m, override: {" + strings.Repeat("x", maxName+1) + ": 5/q}}]", "1:40: is too long: a name has at most 1024 characters"},
		{"pairs in a list", "a: [" + strings.Repeat("b: c, ", 60_000) + "]", `no field "a"`},
		{"quotes before blanks", "a: [" + strings.Repeat(`"b",`, 200_000) + strings.Repeat(" ", 3*mib), `this "[" is never closed`},
		{"names before blanks", "a: {" + strings.Repeat("b: c,", 100_000) + strings.Repeat(" ", 3*mib) + "}", `no field "a"`},
		{"escapes", "a: [" + strings.Repeat(`"\u0041",`, 200_000) + "]", `no field "a"`},
		{"values", "a: [" + strings.Repeat("a,", maxValues-2) + "]", `no field "a"`},
		{"one value more", "a: [" + strings.Repeat("a,", maxValues-1) + "]", "is too large: a rule file has at most 250000 names and values"},
	}
}

// TestHostile reads texts that are designed to take much more work than their length suggests. Each must be refused,
// with a reason. That takes a small part of the time that the test allows.
func TestHostile(t *testing.T) {
	for _, tt := range hostileTexts() {
		t.Run(tt.name, func(t *testing.T) {
			var err error
			soon(t, func() { _, err = Parse("rules.yaml", []byte(tt.text)) })
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("want %q, got %.500v", tt.want, err)
			} else if n := len(err.Error()); n > 50_000 {
				t.Errorf("the message has %d bytes", n)
			}
		})
	}
}

// TestManyKeys checks that files as large as real ones are accepted.
func TestManyKeys(t *testing.T) {
	keys := numbered("tiers: {free: 5/minute}\nrules: [{id: quota}]\nkeys:\n", "  sk_%05d: free\n", 60_000)
	soon(t, func() {
		if f, err := Parse("rules.yaml", []byte(keys)); err != nil || len(f.Rules.Keys) != 60_000 {
			t.Errorf("%.500v", err)
		}
	})
	text := numbered("rules:\n  - id: a\n    limit: 5/minute\n    override:\n", "      sk_prod_vip_%05d: {limit: 3000/minute, burst: 500}\n", 10_000)
	var f *File
	var err error
	soon(t, func() { f, err = Parse("rules.yaml", []byte(text)) })
	if err != nil {
		t.Fatal(err)
	}
	if n := len(f.Rules.Rules[0].Override); n != 10_000 {
		t.Errorf("%d overrides", n)
	}
}

// TestHostileEdits checks that every edit of such a text fails.
func TestHostileEdits(t *testing.T) {
	for _, tt := range hostileTexts() {
		if len(tt.text) > 10_000 && len(tt.text) < MaxSize+1 {
			continue // reading them is tested above
		}
		_, listErr := SetList([]byte(tt.text), Denylist, []string{"a"})
		_, ruleErr := PutRule([]byte(smallest), "a", []byte(tt.text))
		if listErr == nil || ruleErr == nil {
			t.Errorf("%s: %v, %v", tt.name, listErr, ruleErr)
		}
	}
}

// TestLargeEdits edits documents of the largest size. That takes a small part of the time that the test allows.
func TestLargeEdits(t *testing.T) {
	overrides := numbered("rules:\n  - id: a\n    limit: 5/minute\n    override:\n", "      sk_%05d: {limit: 3000/minute, burst: 500} # ä\n", 10_000)
	rules := numbered("{tiers: {t: 5/m}, rules: [{id: ä, match: {endpoint: /ä}", "}, {id: r%d, tier: t, limit: 5/m", 4_000) + "}]}"
	rules = strings.Replace(rules, "id: ä", "id: a, limit: 5/m", 1)
	list := numbered("rules: []\nwhitelist: [ä", ", k%d", 20_000) + "]\n"
	kept := make([]string, 10_000)
	for i := range kept {
		kept[i] = fmt.Sprintf("k%d", 2*i)
	}
	for name, edit := range map[string]func() ([]byte, error){
		"an override": func() ([]byte, error) { return SetOverride([]byte(overrides), "a", "sk_09999", Numbers{Limit: "7"}) },
		"a rule's": func() ([]byte, error) {
			return PutRule([]byte(overrides), "a", []byte("limit: 5/m\noverride: {k: 5/m}"))
		},
		"every rule":     func() ([]byte, error) { return SetTier([]byte(rules), "t", Numbers{Limit: "7", Capacity: 3}) },
		"every second":   func() ([]byte, error) { return SetList([]byte(list), Allowlist, kept) },
		"all but twenty": func() ([]byte, error) { return SetList([]byte(list), Allowlist, kept[:20]) },
	} {
		soon(t, func() {
			if _, err := edit(); err != nil {
				t.Errorf("%s: %.500v", name, err)
			}
		})
	}
}

func TestNotText(t *testing.T) {
	tests := []struct{ text, want string }{
		{"", "rules.yaml: is empty"},
		{" \n\t\n", "rules.yaml: is empty"},
		{"---\n", "rules.yaml: is empty"},
		{"null", "rules.yaml: is empty"},
		{"\xff\xfer\x00u\x00", "rules.yaml:1:1: the byte 0xff is not UTF-8: save the file as UTF-8"},
		{"rules: []\n\xc3\x28", "rules.yaml:2:1: the byte 0xc3 is not UTF-8"},
		{"a: \x1b[31m", "rules.yaml:1:4: the control character U+001B is not allowed here"},
		{"a: b\rc: d", "rules.yaml:1:5: the control character U+000D"},
		{"a: \u0085", "rules.yaml:1:4: the control character U+0085"},
		{"rules: [] # \u202e", "rules.yaml:1:13: the control character U+202E is not allowed here"},
		{"a: \"\\u2028\"", "rules.yaml:1:4: text may hold printable characters only"},
		{"rules", `rules.yaml:1:1: must be a map of fields, name: value, got "rules"`},
		{"42", `rules.yaml:1:1: must be a map of fields, name: value, got 42`},
		{"[]", `rules.yaml:1:1: must be a map of fields, name: value, got a list`},
	}
	for _, tt := range tests {
		if _, err := Parse("rules.yaml", []byte(tt.text)); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%q: want %s, got %v", tt.text, tt.want, err)
		}
	}
}

func TestLoad(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that isn't there: %v", err)
	}
	path := filepath.Join(t.TempDir(), "large.yaml")
	if err := os.WriteFile(path, bytes.Repeat([]byte("# a comment\n"), MaxSize/10), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || err.Error() != path+": is too large: a rule file has at most 4 MiB" {
		t.Errorf("a file that is too large: %v", err)
	}
	if err := os.WriteFile(path, []byte(smallest), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if f.Name != path || len(f.Rules.Rules) != 1 || f.Set == nil {
		t.Errorf("%+v", f)
	}
}

func TestProblems(t *testing.T) {
	_, err := Parse("rules.yaml", []byte(numbered("rules:\n", "  - {id: r%d, limt: 5/m}\n", 25)))
	var ps Problems
	if !errors.As(err, &ps) || len(ps) != 25 {
		t.Fatalf("%T, %d problems", err, len(ps))
	}
	if got := err.Error(); strings.Count(got, "did you mean") != 20 || !strings.HasSuffix(got, "\nand 5 more") {
		t.Errorf("got %s", got)
	}
	js, err := json.Marshal(ps[1])
	if err != nil {
		t.Fatal(err)
	}
	want := `{"file":"rules.yaml","line":3,"column":14,"path":"rules[1].limt","rule":"r1","text":"a rule has no field \"limt\"","hint":"did you mean \"limit\"? The fields are ` +
		strings.Join(ruleFields.names, ", ") + `","excerpt":"  - {id: r1, limt: 5/m}","caret":13}`
	if string(js) != want {
		t.Errorf("got  %s\nwant %s", js, want)
	}
}

// If comparing all patterns would take minutes, the check is skipped, and a warning says so.
func TestHostilePatternsAreWarnedOf(t *testing.T) {
	text := numbered("tiers: {a: 1/s, b: 2/s}\nrules: [{id: quota}]\nkeys: {\n", `"`+strings.Repeat("*a", 40)+`b%d*c": a,`+"\n", 999) +
		numbered("", `"`+strings.Repeat("a", 60)+`%d": b,`+"\n", 38_000) + "}\n"
	f, err := Parse("rules.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	const want = "rules.yaml:3:7: keys: there are too many to hold them all against each other"
	if !strings.Contains(fmt.Sprint(f.Warnings), want) {
		t.Errorf("want %q in %v", want, f.Warnings)
	}
}

// If thousands of rules have changed, Compare stops early, and a warning says so.
func TestHostileChangesAreWarnedOf(t *testing.T) {
	parse := func(path string) *File {
		t.Helper()
		f, err := Parse("rules.yaml", []byte(numbered("rules:\n", "- {id: r%[1]d, limit: 5/m, match: {endpoint: /"+path+"/%[1]d}}\n", 5_000)))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	const want = "too many rules have changed to tell whether all requests that were limited still are"
	if got := fmt.Sprint(Compare(parse("a"), parse("b"))); !strings.Contains(got, want) {
		t.Errorf("want %q in %.2000s", want, got)
	}
}
