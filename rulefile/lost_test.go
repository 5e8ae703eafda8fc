package rulefile

import (
	"strings"
	"testing"
	"time"
)

// Lost lists what single clients would lose by a change, with their keys masked.
func TestLost(t *testing.T) {
	const old = `rules:
  - id: search
    limit: 30/minute
    override:
      sk_prod_customer_0001: {limit: 3000/minute}
      sk_prod_customer_0002: {limit: 1/minute, expires: 2026-01-31T12:00:00Z}
whitelist: ["sk_monitoring_*", "198.51.100.7"]
blacklist: ["sk_prod_leaked_4711", "203.0.113.9", "sk_old_*"]
`
	now := time.Date(2026, 1, 31, 11, 0, 0, 0, time.UTC)
	tests := []struct {
		name, from, to string
		late           bool // the second override has expired
		changed        bool
		want           []string
	}{
		{name: "nothing"},
		{name: "a block", from: `"sk_prod_leaked_4711", `, want: []string{"sk_p…11 is blocked now and would not be any more; keep it in `blacklist`"}},
		{name: "a block that a wider one covers", from: `"sk_prod_leaked_4711"`, to: `"sk_prod_leaked_*"`},
		{name: "a block that a narrower one doesn't cover", from: `"sk_old_*"`, to: `"sk_old_1"`, want: []string{"sk_old_* is blocked now"}},
		{name: "an address in a range", from: `"203.0.113.9"`, to: `"203.0.113.0/24"`},
		{name: "an address", from: `"203.0.113.9", `, want: []string{"203.0.113.9 is blocked now"}},
		{name: "a block in a file of the lists' first names", from: `blacklist: ["sk_prod_leaked_4711", "203.0.113.9", "sk_old_*"]`, to: `deny: [203.0.113.9, "sk_old_*"]`, want: []string{"sk_p…11 is blocked now and would not be any more; keep it in `deny`"}},
		{name: "all blocks", from: `blacklist: ["sk_prod_leaked_4711", "203.0.113.9", "sk_old_*"]`, want: []string{"sk_p…11 is", "203.0.113.9 is", "sk_old_* is"}},
		{name: "a block that is an allowance now", from: "7\"]\nblacklist: [\"sk_prod_leaked_4711\"", to: "7\", \"sk_prod_leaked_4711\"]\nblacklist: [\"other\"", want: []string{"sk_p…11 is blocked"}},
		{name: "an allowance", from: `"sk_monitoring_*", `, want: []string{"sk_monitoring_* passes every limit now and would not any more; keep it in `whitelist`"}},
		{name: "an override", from: "sk_prod_customer_0001", to: "sk_prod_customer_0003", want: []string{`sk_pr…01 has numbers of its own in the rule "search" now, and would not have these any more; keep it`}},
		{name: "one that expires", from: "sk_prod_customer_0002", to: "sk_prod_customer_0003", want: []string{"sk_pr…02 has"}},
		{name: "one that has expired", from: "sk_prod_customer_0002", to: "sk_prod_customer_0003", late: true},
		{name: "other numbers", from: "3000/minute", to: "5000/minute"},
		{name: "other numbers by going back", from: "3000/minute", to: "5000/minute", changed: true, want: []string{"sk_pr…01 has"}},
		{name: "the rule", from: "id: search", to: "id: find", want: []string{"sk_pr…01 has", "sk_pr…02 has"}},
		{name: "the rule in capitals", from: "id: search", to: "id: SEARCH"},
	}
	for _, tt := range tests {
		if tt.from != "" && strings.Count(old, tt.from) != 1 {
			t.Fatalf("%s: %q is there %d times", tt.name, tt.from, strings.Count(old, tt.from))
		}
		at := now
		if tt.late {
			at = now.Add(2 * time.Hour)
		}
		before, err := ParseAt("rules", []byte(old), at)
		if err != nil {
			t.Fatal(err)
		}
		text := old
		if tt.from != "" {
			text = strings.Replace(old, tt.from, tt.to, 1)
		}
		after, err := ParseAt("rules", []byte(text), at)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		lost := Lost(before, after, tt.changed)
		if len(lost) != len(tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, lost, tt.want)
			continue
		}
		for i, want := range tt.want {
			if got := lost[i].String(); !strings.Contains(got, ": "+want) || strings.Contains(lost[i].Path, "sk_") {
				t.Errorf("%s: got %s, want %s", tt.name, got, want)
			}
		}
	}
}

// The list stays short, however much is lost.
func TestLostIsShort(t *testing.T) {
	before, err := Parse("rules", []byte("rules: [{id: all, limit: 5/m}]\nblacklist: ["+strings.Repeat("a, ", 1000)+"a]"))
	if err != nil {
		t.Fatal(err)
	}
	after, err := Parse("rules", []byte("rules: [{id: all, limit: 5/m}]"))
	if err != nil {
		t.Fatal(err)
	}
	lost := Lost(before, after, false)
	if len(lost) != 21 || lost[20].Text != "and 981 more of them" {
		t.Errorf("%d: %v", len(lost), lost[len(lost)-1])
	}
}
