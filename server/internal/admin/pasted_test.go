package admin_test

import (
	"strings"
	"testing"
)

// A key that is pasted into a wrong field, or in place of a name, appears neither in the error nor in the log.
func TestPastedKeysArentRepeated(t *testing.T) {
	p := open(t, nil, "")
	const key = "sk_live_0123456789abcdef0123456789"
	ask := func(method, path, body string, headers ...string) {
		t.Helper()
		a := p.do(t, method, strings.ReplaceAll(path, "KEY", key), strings.ReplaceAll(body, "KEY", key), headers...)
		if a.status < 400 || a.code(t) == "" || strings.Contains(a.text, key) {
			t.Errorf("%s %s %s: %d %s", method, path, body, a.status, a.text)
		}
	}
	for _, path := range []string{
		"/v1/events?outcome=KEY", "/v1/events?edge=KEY", "/v1/events?client=KEY", "/v1/events?KEY=1", "/v1/events?KEY=1&KEY=2",
		"/v1/top?by=KEY", "/v1/top?k=KEY", "/v1/top?rule=KEY", "/v1/rules/usage/KEY", "/v1/rules/usage/quota?k=KEY", "/v1/rules/usage/quota?by=KEY",
		"/v1/rules/id/KEY", "/v1/rules/versions/KEY", "/v1/rules/versions/1-KEY", "/v1/rules/versions?before=KEY", "/v1/rules/versions?limit=KEY",
		"/v1/rules/diff?from=KEY", "/v1/rules/diff?to=KEY", "/v1/rules/diff?from=1-KEY",
	} {
		ask("GET", path, "")
	}
	for _, path := range []string{"/v1/explain", "/v1/counters", "/v1/counters/reset", "/v1/counters/release", "/v1/clients"} {
		for _, body := range []string{`{"ip": "KEY"}`, `{"KEY": 1}`, `{"client": "KEY"}`, `KEY`, `["KEY"]`, `"KEY"`, `{"key": "k"} KEY`, `{"key": "k", "cost": "KEY"}`} {
			ask("POST", path, body)
		}
	}
	ask("POST", "/v1/explain?unverified=KEY", `{"key": "k"}`)
	const slot = `"slot": "00112233445566778899aabbccddeeff"`
	for _, body := range []string{`{"key": "k", "slot": "KEY"}`, `{"key": "k", "slot": ["KEY"]}`, `{` + slot + `, "rule": "KEY"}`, `{` + slot + `, "rule": {"KEY": 1}}`, `{` + slot + `, "KEY": 1}`, `{` + slot + `, "client": "KEY"}`, `{` + slot + `, "key": "KEY"}`} {
		ask("POST", "/v1/counters/release", body)
	}
	for _, body := range []string{`{"rule": "KEY"}`, `{"rule": "search", "limit": "KEY"}`, `{"rule": "search", "limit": ["KEY"]}`, `{"rule": "search", "limit": 1, "algorithm": "KEY"}`, `{"KEY": 1}`} {
		ask("POST", "/v1/rules/whatif", body)
	}
	for _, body := range []string{
		`{"key": "k", "rule": "KEY", "limit": 1}`, `{"key": "k", "rule": "search", "limit": "KEY"}`, `{"key": "k", "rule": "search", "limit": {"KEY": 1}}`,
		`{"key": "k", "rule": "search", "limit": 1, "expires_in": "KEY"}`, `{"client": "KEY", "rule": "search", "limit": 1}`, `{"key": "KEY", "rule": "search", "limit": "x"}`,
	} {
		ask("PUT", "/v1/rules/key", body)
	}
	ask("DELETE", "/v1/rules/key", `{"key": "KEY", "rule": "search"}`)
	ask("PUT", "/v1/rules/key?force=KEY", `{"key": "k", "rule": "search", "limit": 1}`)
	ask("PUT", "/v1/rules/key?dry_run=KEY", `{"key": "k", "rule": "search", "limit": 1}`)
	ask("PUT", "/v1/rules/key", `{"key": "k", "rule": "search", "limit": 1}`, "If-Match: "+key)
	ask("PUT", "/v1/rules/tier/KEY", `{"limit": 5}`)
	ask("PUT", "/v1/rules/tier/free", `{"limit": "KEY"}`)
	ask("PUT", "/v1/rules/id/KEY", "limit: x")
	ask("DELETE", "/v1/rules/id/KEY", "")
	ask("POST", "/v1/rules/rollback", `{"version": "KEY"}`)
	ask("POST", "/v1/rules/rollback", `{"version": 1, "hash": "KEY"}`)
	ask("POST", "/v1/denylist/entries", `{"key": "KEY", "remove": true}`)
	ask("POST", "/v1/denylist/entries", `{"client": "KEY"}`)
	ask("PUT", "/v1/denylist", `{"entries": "KEY"}`)
	ask("POST", "/v1/session", `{"KEY": 1}`)
	ask("GET", "/debug/pprof/KEY", "")
	if strings.Contains(p.log.String(), key) {
		t.Errorf("the log contains the key:\n%s", p.log.String())
	}
	// A misspelled name does appear in the error.
	if a := p.do(t, "GET", "/v1/rules/usage/serch", ""); !strings.Contains(a.text, `there is no rule \"serch\"`) {
		t.Error(a.text)
	}
}
