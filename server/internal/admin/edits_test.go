package admin_test

import (
	"strings"
	"testing"
	"time"
)

// An override that expires keeps its end when its numbers change, unless the caller sets another end.
func TestAnOverrideKeepsItsEnd(t *testing.T) {
	p := open(t, nil, "")
	put := func(body string) (text string, ends time.Time) {
		t.Helper()
		a := p.do(t, "PUT", "/v1/rules/key?force=true", `{"key": "sk_vip", "rule": "search", `+body+`}`)
		p.want(t, a, 200, "")
		if at, ok := a.json(t)["expires"].(string); ok {
			var err error
			if ends, err = time.Parse(time.RFC3339, at); err != nil {
				t.Fatal(err)
			}
		}
		return p.do(t, "GET", "/v1/rules", "").text, ends
	}
	_, first := put(`"limit": "100/minute", "expires_in": "1h"`)
	if left := time.Until(first); left < 50*time.Minute || left > 70*time.Minute {
		t.Fatalf("an hour ends at %s", first)
	}
	written := "expires: " + first.Format(time.RFC3339)
	for _, body := range []string{`"limit": "200/minute"`, `"limit": "300/minute", "capacity": 20`, `"capacity": 30`} {
		text, ends := put(body)
		if !ends.Equal(first) || !strings.Contains(text, written) {
			t.Errorf("%s: ends at %s, not at %s:\n%s", body, ends, first, text)
		}
	}
	if text, ends := put(`"limit": "300/minute", "capacity": 40, "expires_in": "never"`); !ends.IsZero() || strings.Contains(text, "expires") || !strings.Contains(text, "burst: 40") {
		t.Errorf("never: ends at %s\n%s", ends, text)
	}
	if _, ends := put(`"limit": "400/minute"`); !ends.IsZero() {
		t.Errorf("an override without an end ends at %s", ends)
	}
	p.want(t, p.do(t, "PUT", "/v1/rules/key", `{"key": "sk_vip", "rule": "search", "limit": 5, "expires_in": "soon"}`), 400, "BAD_REQUEST")
}

// An expired override counts as a new one when it is written: it doesn't inherit an end in the past.
func TestAnExpiredOverrideIsNew(t *testing.T) {
	p := open(t, nil, "")
	over := "rules:\n  - id: search\n    limit: 5/s\n    override:\n"
	for i := range 50 { // more than a single write removes
		over += "      sk_" + string(rune('a'+i%26)) + string(rune('a'+i/26)) + ": {limit: 9/s, expires: 2020-01-01T00:00:00Z}\n"
	}
	p.want(t, p.do(t, "PUT", "/v1/rules?force=true", over, "If-Match: *"), 200, "")
	for range 2 {
		a := p.do(t, "PUT", "/v1/rules/key", `{"key": "sk_ab", "rule": "search", "limit": "7/second"}`)
		p.want(t, a, 200, "")
		if _, ends := a.json(t)["expires"]; ends {
			t.Errorf("ends: %s", a.text)
		}
	}
	if text := p.do(t, "GET", "/v1/rules", "").text; !strings.Contains(text, "sk_ab: 7/second") && !strings.Contains(text, "sk_ab: {limit: 7/s}") {
		t.Errorf("in force is\n%s", text)
	}
}

// An override names an API key. In a rule that counts by something else it is refused, and the error says what to write
// instead.
func TestNoOverrideInARuleThatCountsByNoKey(t *testing.T) {
	p := open(t, nil, "")
	for _, c := range []struct{ path, body string }{
		{"/v1/rules/key", `{"key": "203.0.113.7", "rule": "address", "limit": "9000/minute"}`},
		{"/v1/rules/id/team", `{"by": ["org"], "limit": "31/minute", "override": {"acme": "5000/minute"}}`},
	} {
		a := p.do(t, "PUT", c.path+"?force=true", c.body)
		p.want(t, a, 422, "RULES_INVALID")
		if !strings.Contains(a.text, "`tiers: {NAME: 5000/minute}`") {
			t.Errorf("%s: %s", c.path, a.text)
		}
	}
}

// The history describes changes in words, and never shows a whole key.
func TestTheHistoryIsInWords(t *testing.T) {
	p := open(t, nil, "")
	newest := func() string {
		t.Helper()
		return p.do(t, "GET", "/v1/rules/versions?limit=1", "").json(t)["versions"].([]any)[0].(map[string]any)["message"].(string)
	}
	for _, c := range []struct{ method, path, body, want string }{
		{"PUT", "/v1/denylist", `{"entries": ["sk_revoked_*", "sk_live_4711abc123"]}`, "block sk_l…23"},
		{"PUT", "/v1/denylist", `{"entries": ["203.0.113.0/24", "a1", "b2", "c3", "d4"]}`, "block 203.0.113.0/24, …, … and 2 more; unblock sk_revoked_*, sk_l…23"},
		{"PUT", "/v1/denylist", `{"entries": []}`, "unblock 203.0.113.0/24, …, … and 2 more"},
		{"PUT", "/v1/allowlist", `{"entries": ["sk_internal_*"]}`, "allow sk_internal_*"},
		{"PUT", "/v1/allowlist", `{"entries": []}`, "no longer allow sk_internal_*"},
		{"PUT", "/v1/rules/tier/pro", `{"limit": 2000, "capacity": 500}`, "change tier pro"},
		{"PUT", "/v1/rules/tier/pro", `{"capacity": 400}`, "change tier pro"},
		{"PUT", "/v1/rules/key", `{"key": "sk_live_4711abc123", "rule": "search", "limit": "3000/minute", "capacity": 50}`, "give sk_l…23 3000/minute with a burst of 50 in rule search"},
		{"DELETE", "/v1/rules/key", `{"key": "sk_live_4711abc123", "rule": "search"}`, "take from sk_l…23 its own numbers in rule search"},
		{"PUT", "/v1/rules/id/search", `{"match": {"endpoint": "/v1/search"}, "limit": "31/minute"}`, "change rule search"},
		{"PUT", "/v1/rules/id/new", `{"limit": "31/minute"}`, "add rule new"},
		{"DELETE", "/v1/rules/id/search", ``, "delete rule search"},
		{"PUT", "/v1/rules", rules, "add rule search; delete rule new; change tier pro; block sk_revoked_*"},
		{"PUT", "/v1/rules", rules + "# the same\n", "change nothing but the text"},
		{"PUT", "/v1/rules", rules + "prices: {gpt-4*: {input: 2/1M}, gpt-*: {input: 1/1M}}\n", "add price gpt-4*, gpt-*"},
		{"PUT", "/v1/rules", rules + "prices: {gpt-*: {input: 1/1M}, gpt-4*: {input: 2/1M}}\n", "change the order of prices"},
		{"PUT", "/v1/rules", rules + "prices: {gpt-*: {input: 3/1M}}\nweights: {points: {output: 4}}\n", "change price gpt-*; delete price gpt-4*; add weight points"},
		{"PUT", "/v1/rules", rules, "delete price gpt-*; delete weight points"},
		{"PUT", "/v1/denylist?message=spam", `{"entries": ["sk_x"]}`, "spam"},
	} {
		path := c.path + "?force=true"
		if strings.Contains(c.path, "?") {
			path = c.path + "&force=true"
		}
		p.want(t, p.do(t, c.method, path, c.body, "If-Match: *"), 200, "")
		if got := newest(); got != c.want {
			t.Errorf("%s %s %s: %q, not %q", c.method, c.path, c.body, got, c.want)
		}
	}
	p.want(t, p.do(t, "PUT", "/v1/rules/key", `{"key": "sk_live_4711abc123", "rule": "search", "limit": "3000/minute", "expires_in": "1h"}`), 200, "")
	if got := newest(); !strings.HasPrefix(got, "give sk_l…23 3000/minute in rule search until 20") || !strings.HasSuffix(got, " UTC") {
		t.Error(got)
	}
}
