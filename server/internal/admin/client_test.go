package admin_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weirhq/weir"
)

// send checks a request on the node, and returns the fingerprint of its client.
func (p *port) send(t *testing.T, r weir.Request) string {
	t.Helper()
	if _, err := p.limiter.Check(t.Context(), &r); err != nil {
		t.Fatal(err)
	}
	return p.top.Fingerprint(&r)
}

// TestAClientByItsFingerprint checks that a client can be shown, given a higher limit, blocked and reset by its
// fingerprint, without its key in a response or the log.
func TestAClientByItsFingerprint(t *testing.T) {
	const key = "sk_prod_0123456789abcdef"
	p := open(t, nil, "")
	print := p.send(t, weir.Request{APIKey: key, KeyVerified: true, Method: "GET", Path: "/v1/search"})
	client := `{"client": "` + print + `"`
	answers := ""
	do := func(method, path, rest string, status int) answer {
		t.Helper()
		a := p.do(t, method, path, client+rest+"}")
		p.want(t, a, status, "")
		answers += a.text
		return a
	}
	search := `, "method": "GET", "path": "/v1/search"`
	if a := do("POST", "/v1/counters", search, 200); !strings.Contains(a.text, `"remaining":29`) {
		t.Errorf("its counters: %s", a.text)
	}
	do("POST", "/v1/explain", search, 200)
	do("PUT", "/v1/rules/key?dry_run=true", `, "rule": "search", "limit": "900/minute"`, 200)
	if a := do("PUT", "/v1/rules/key", `, "rule": "search", "limit": "900/minute", "expires_in": "1h"`, 200); !strings.Contains(a.text, "sk_prod…") && !strings.Contains(a.text, "sk_pro…") {
		t.Errorf("the difference: %s", a.text)
	}
	do("PUT", "/v1/rules/key", `, "rule": "search", "limit": "900/fortnight"`, 422)
	if a := do("POST", "/v1/clients", "", 200); !strings.Contains(a.text, `"overrides":[{"rule":"search","limit":"900/minute"`) || !strings.Contains(a.text, `"blocked":false`) {
		t.Errorf("its page: %s", a.text)
	}
	do("DELETE", "/v1/rules/key", `, "rule": "search"`, 200)
	do("DELETE", "/v1/rules/key", `, "rule": "search"`, 404)
	do("POST", "/v1/denylist/entries?message=leaked", "", 200)
	if a := do("POST", "/v1/clients", "", 200); !strings.Contains(a.text, `"blocked":true`) {
		t.Errorf("its page: %s", a.text)
	}
	if a := do("POST", "/v1/explain", search, 200); !strings.Contains(a.text, `"reason":"denied"`) {
		t.Errorf("it is blocked: %s", a.text)
	}
	if a := p.do(t, "GET", "/v1/denylist", ""); !strings.Contains(a.text, `"sk_revoked_*","`+key+`"`) {
		t.Errorf("the list: %s", a.text)
	}
	do("POST", "/v1/denylist/entries", `, "remove": true`, 200)
	do("POST", "/v1/denylist/entries", `, "remove": true`, 404)
	do("POST", "/v1/allowlist/entries?force=true", "", 200)
	do("POST", "/v1/counters/reset", search, 200)
	do("POST", "/v1/counters", search+`, "key": "x"`, 400)
	do("POST", "/v1/counters", search+`, "unknown": 1`, 400)
	do("POST", "/v1/denylist/entries", `, "key": "x"`, 400)
	answers += p.do(t, "GET", "/v1/rules/versions", "").text + p.log.String()
	if i := strings.Index(answers, key[4:]); i >= 0 {
		t.Errorf("the key can be read: %s", answers[max(0, i-200):i+50])
	}
}

// TestKeysThatLookLikeOtherEntries checks that a client can't have others blocked or allowed by sending a key that looks
// like an address or a pattern.
func TestKeysThatLookLikeOtherEntries(t *testing.T) {
	p := open(t, nil, "")
	for _, key := range []string{"203.0.113.7", "203.0.113.0/24", "sk_prod_*", " sk_prod_1 ", "sk: [x]", `"quoted"`, "a\nb", "ключ"} {
		print := p.send(t, weir.Request{APIKey: key, Path: "/v1/search"})
		for _, path := range []string{"/v1/denylist/entries", "/v1/allowlist/entries?force=true"} {
			a := p.do(t, "POST", path, `{"client": "`+print+`"}`)
			p.want(t, a, 400, "BAD_REQUEST")
			if strings.Contains(a.text, key) {
				t.Errorf("the error contains the key: %s", a.text)
			}
		}
		p.want(t, p.do(t, "POST", "/v1/counters", `{"client": "`+print+`", "path": "/v1/search"}`), 200, "")
	}
	user := p.send(t, weir.Request{User: "ada", Path: "/v1/search"})
	p.want(t, p.do(t, "POST", "/v1/denylist/entries", `{"client": "`+user+`"}`), 400, "BAD_REQUEST")
	p.want(t, p.do(t, "PUT", "/v1/rules/key", `{"client": "`+user+`", "rule": "search", "limit": "5/s"}`), 400, "BAD_REQUEST")
}

// TestShortKeysInAnswers checks that masking a short key doesn't change other words that contain it.
func TestShortKeysInAnswers(t *testing.T) {
	p := open(t, nil, "")
	print := p.send(t, weir.Request{APIKey: "search", Path: "/v1/search"})
	a := p.do(t, "PUT", "/v1/rules/key?dry_run=true", `{"client": "`+print+`", "rule": "search", "limit": "900/minute"}`)
	p.want(t, a, 200, "")
	if !strings.Contains(a.text, "/v1/s…}") && !strings.Contains(a.text, "s…: 900/minute") {
		t.Errorf("the difference: %s", a.text)
	}
}

// TestAddressesByFingerprint checks that an address is blocked as the network by which it is counted.
func TestAddressesByFingerprint(t *testing.T) {
	p := open(t, nil, "")
	print := p.send(t, weir.Request{IP: netip.MustParseAddr("2001:db8::17"), Path: "/v1/search"})
	p.want(t, p.do(t, "POST", "/v1/denylist/entries", `{"client": "`+print+`"}`), 200, "")
	if a := p.do(t, "GET", "/v1/denylist", ""); !strings.Contains(a.text, `"2001:db8::/64"`) {
		t.Errorf("the list: %s", a.text)
	}
	if a := p.do(t, "POST", "/v1/clients", `{"ip": "2001:db8::99"}`); !strings.Contains(a.text, `"blocked":true`) || !strings.Contains(a.text, print) {
		t.Errorf("its page: %s", a.text)
	}
}
