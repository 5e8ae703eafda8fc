package admin_test

import (
	"os"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/rulefile"
)

const leaked = "sk_prod_leaked_4711_abcdef"

// denied reports whether a verified key is blocked.
func (p *port) denied(t *testing.T, key string) bool {
	t.Helper()
	d, err := p.limiter.Check(t.Context(), &weir.Request{APIKey: key, KeyVerified: true, Path: "/v1/search"})
	if err != nil {
		t.Fatal(err)
	}
	return d.Reason == weir.ReasonDenied
}

// A key with an override, a key on the allow list, and a range that causes a warning can be blocked without force.
func TestABlockNeedsNoForce(t *testing.T) {
	p := open(t, nil, "")
	p.want(t, p.do(t, "PUT", "/v1/rules/key", `{"key": "`+leaked+`", "rule": "search", "limit": "3000/minute"}`), 200, "")
	p.want(t, p.do(t, "PUT", "/v1/allowlist?force=true", `{"entries": ["`+leaked+`"]}`), 200, "")
	for _, entry := range []string{leaked, "64.0.0.0/4"} {
		a := p.do(t, "POST", "/v1/denylist/entries", `{"key": "`+entry+`"}`)
		if p.want(t, a, 200, ""); strings.Contains(a.text, `"warnings":[]`) || !strings.Contains(a.text, `"needs_force":false`) {
			t.Errorf("%s: %s", entry, a.text)
		}
	}
	if !p.denied(t, leaked) {
		t.Error("it passes")
	}
	p.want(t, p.do(t, "POST", "/v1/denylist/entries?force=true", `{"key": "*"}`), 422, "RULES_INVALID")
}

// If the rules are in a file, they are changed only there, except for blocks: these apply at once, and all views show
// them.
func TestTheEmergencyList(t *testing.T) {
	p := open(t, nil, "rules.yaml")
	const body = `{"key": "` + leaked + `"}`
	p.want(t, p.do(t, "POST", "/v1/allowlist/entries", body), 409, "RULES_IN_FILE")
	p.want(t, p.do(t, "POST", "/v1/denylist/entries", `{"key": "*"}`), 422, "RULES_INVALID")
	a := p.do(t, "POST", "/v1/denylist/entries?dry_run=true", body)
	if p.want(t, a, 200, ""); !strings.Contains(a.text, `"emergency":"added"`) || p.denied(t, leaked) {
		t.Errorf("a dry run: %s", a.text)
	}
	a = p.do(t, "POST", "/v1/denylist/entries?message=leaked", body)
	if p.want(t, a, 200, ""); !strings.Contains(a.text, `"emergency":"added"`) || !strings.Contains(a.text, "rules.yaml") || !p.denied(t, leaked) {
		t.Errorf("the block: %s", a.text)
	}
	if a := p.do(t, "POST", "/v1/denylist/entries", body); a.status != 200 || strings.Contains(a.text, "added") || !strings.Contains(a.text, "is already on the emergency list") {
		t.Errorf("the block again: %d %s", a.status, a.text)
	}
	if a := p.do(t, "POST", "/v1/denylist/entries", `{"key": "sk_revoked_*"}`); a.status != 200 || strings.Contains(a.text, "emergency") {
		t.Errorf("an entry that the file has: %d %s", a.status, a.text)
	}
	list := p.do(t, "GET", "/v1/denylist", "").text
	for _, want := range []string{`"entries":["sk_revoked_*"]`, `"emergency":[{"entry":"` + leaked + `"`, `"message":"leaked"`} {
		if !strings.Contains(list, want) {
			t.Errorf("the list doesn't show %s: %s", want, list)
		}
	}
	if a := p.do(t, "POST", "/v1/explain", body); !strings.Contains(a.text, `"reason":"denied"`) || !strings.Contains(a.text, `"emergency":true`) {
		t.Errorf("explain: %s", a.text)
	}
	if a := p.do(t, "POST", "/v1/clients", body); !strings.Contains(a.text, `"blocked":true`) {
		t.Errorf("the client: %s", a.text)
	}
	if a := p.do(t, "POST", "/v1/rules/validate", rules); !strings.Contains(a.text, "blocked by the emergency list and not by these rules") || strings.Contains(a.text, leaked) {
		t.Errorf("lint: %s", a.text)
	}
	with, err := rulefile.SetList([]byte(rules), rulefile.Denylist, []string{"sk_prod_leaked_*"})
	if err != nil {
		t.Fatal(err)
	}
	if a := p.do(t, "POST", "/v1/rules/validate", string(with)); strings.Contains(a.text, "emergency list") {
		t.Errorf("lint of rules that block it, too: %s", a.text)
	}
	a = p.do(t, "POST", "/v1/denylist/entries", `{"key": "`+leaked+`", "remove": true}`)
	if p.want(t, a, 200, ""); !strings.Contains(a.text, `"emergency":"removed"`) || p.denied(t, leaked) {
		t.Errorf("removed: %s", a.text)
	}
	p.want(t, p.do(t, "POST", "/v1/denylist/entries", `{"key": "`+leaked+`", "remove": true}`), 404, "NOT_FOUND")
	p.want(t, p.do(t, "POST", "/v1/denylist/entries", `{"key": "sk_revoked_*", "remove": true}`), 409, "RULES_IN_FILE")
	log := p.log.String()
	for _, want := range []string{`what="emergency list: entry added"`, `what="emergency list: entry removed"`, "entry=sk_pr"} {
		if !strings.Contains(log, want) {
			t.Errorf("the audit doesn't have %s:\n%s", want, log)
		}
	}
	if strings.Contains(log, leaked) {
		t.Errorf("the log has the key:\n%s", log)
	}
}

// A key can be blocked even if the rule store can't be written or its newest version can't be read.
func TestABlockWithoutTheRuleStore(t *testing.T) {
	p := open(t, nil, "")
	p.want(t, p.do(t, "POST", "/v1/denylist/entries", `{"key": "sk_before"}`), 200, "")
	if err := os.RemoveAll(p.data); err != nil {
		t.Fatal(err)
	}
	p.want(t, p.do(t, "PUT", "/v1/denylist?force=true", `{"entries": ["`+leaked+`"]}`, "If-Match: *"), 503, "RULES_UNAVAILABLE")
	a := p.do(t, "POST", "/v1/denylist/entries", `{"key": "`+leaked+`"}`)
	if p.want(t, a, 200, ""); !strings.Contains(a.text, `"emergency":"added"`) || !p.denied(t, leaked) || !p.denied(t, "sk_before") {
		t.Errorf("the block: %s", a.text)
	}
	// An entry in the rules can't be removed now, but one in the emergency list can.
	p.want(t, p.do(t, "POST", "/v1/denylist/entries", `{"key": "sk_before", "remove": true}`), 503, "RULES_UNAVAILABLE")
	a = p.do(t, "POST", "/v1/denylist/entries", `{"key": "`+leaked+`", "remove": true}`)
	if p.want(t, a, 200, ""); p.denied(t, leaked) {
		t.Errorf("removed: %s", a.text)
	}
}
