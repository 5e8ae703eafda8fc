package admin_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/node/rulestore"
)

// lastChange returns who changed a rule last: version, author and message.
func lastChange(t *testing.T, p *port, id string) string {
	t.Helper()
	a := p.do(t, "GET", "/v1/rules/id/"+id, "", "Authorization: Bearer secret-ada")
	p.want(t, a, 200, "")
	v := a.json(t)
	changed, _ := v["changed"].(map[string]any)
	if changed == nil {
		return fmt.Sprintf("%v, searched %v", v["reason"], v["searched"])
	}
	if changed["time"] == "" || v["reason"] != nil {
		t.Errorf("%v", v)
	}
	return fmt.Sprintf("%v %v: %v, searched %v", changed["version"], changed["author"], changed["message"], v["searched"])
}

func TestOneRule(t *testing.T) {
	p := open(t, tokens(t), "")
	wantChange := func(id, want string) {
		t.Helper()
		if got := lastChange(t, p, id); got != want {
			t.Errorf("%s was changed by %s, want %s", id, got, want)
		}
	}
	put := func(who, method, path, body string) {
		t.Helper()
		p.want(t, p.do(t, method, path, body, "Authorization: Bearer "+who, "If-Match: *"), 200, "")
	}
	one := p.do(t, "GET", "/v1/rules/id/Search", "", "Authorization: Bearer secret-ada")
	if v := one.json(t); v["rule"] != "search" || v["yaml"] != "id: search\nmatch: {endpoint: /v1/search}\nlimit: 30/minute\n" || v["line"] != 8. || fmt.Sprint(v["limits"]) != "[30/minute]" || one.header.Get("ETag") != `"1"` {
		t.Errorf("%s", one.text)
	}
	if v := p.do(t, "GET", "/rules/id/quota", "", "Authorization: Bearer secret-ada").json(t); fmt.Sprint(v["limits"]) != "[free 100/minute pro 1000/minute burst 200]" || fmt.Sprint(v["numbers"]) != "[map[limit:100/minute tier:free] map[burst:200 limit:1000/minute tier:pro]]" || v["yaml"] != "id: quota          # by tier\n" {
		t.Errorf("%v", v)
	}
	wantChange("search", "1 weir: seed, searched 1") // unchanged since the first version

	put("secret-ada", "PUT", "/v1/rules/id/search?message=nightly+jobs", `{"match": {"endpoint": "/v1/search"}, "limit": "31/minute"}`)
	put("secret-all", "PUT", "/v1/rules/tier/pro?message=pro+pays+more", `{"limit": 1100}`)
	put("secret-all", "PUT", "/v1/denylist?message=a+leak", `{"entries": ["sk_revoked_*", "sk_leaked"]}`)
	wantChange("search", "2 ada: nightly jobs, searched 3")
	wantChange("quota", "3 admin: pro pays more, searched 2")
	wantChange("address", "1 weir: seed, searched 4")
	put("secret-all", "PUT", "/v1/rules/key?message=vip", `{"key": "sk_vip", "rule": "search", "limit": "300/minute", "expires_in": "1h"}`)
	wantChange("search", "5 admin: vip, searched 1")
	put("secret-ada", "DELETE", "/v1/rules/id/address?force=true&message=away", "")
	put("secret-all", "PUT", "/v1/rules/id/address?message=and+back", `{"by": ["ip"], "limit": "5000/minute"}`)
	wantChange("address", "7 admin: and back, searched 1")
	put("secret-ada", "POST", "/v1/rules/rollback?force=true", `{"version": 1, "message": "as it was"}`)
	wantChange("search", "8 ada: as it was, searched 1")
	wantChange("address", "7 admin: and back, searched 2") // the rollback didn't change this rule
	p.want(t, p.do(t, "GET", "/v1/rules/id/serch", "", "Authorization: Bearer secret-ada"), 404, "NOT_FOUND")
	p.want(t, p.do(t, "GET", "/v1/rules/id/search", ""), 401, "UNAUTHORIZED")

	// The search remembers what it has found: versions don't change, so only the new one is compared.
	if err := os.Remove(filepath.Join(p.data, "7.yaml")); err != nil {
		t.Fatal(err)
	}
	put("secret-ada", "PUT", "/v1/denylist?message=another", `{"entries": ["sk_revoked_*", "sk_leaked", "sk_other"]}`)
	wantChange("search", "8 ada: as it was, searched 2")
	wantChange("address", "7 admin: and back, searched 3")
}

// A long history is searched in parts, and the response says how far.
func TestARuleThatWasNeverChanged(t *testing.T) {
	p := open(t, nil, "")
	v, err := p.dir.Get(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 520 {
		next := rulestore.Version{Parent: v.Number, ParentHash: v.Hash, Author: "ci", Text: []byte(fmt.Sprintf("%s# %d\n", rules, i))}
		if v, err = p.dir.Append(t.Context(), 0, next); err != nil {
			t.Fatal(err)
		}
	}
	p.source.Look()
	for p.source.InForce().Version < v.Number {
		if p.source.Look(); t.Context().Err() != nil {
			t.Fatal("the versions aren't seen")
		}
	}
	first := lastChange(t, p, "search")
	if !strings.HasPrefix(first, "it is the same in the last ") || !strings.Contains(first, " versions, back to ") {
		t.Error(first)
	}
	for range 20 { // on a busy machine, each request searches fewer versions
		if first = lastChange(t, p, "search"); first == "1 weir: seed, searched 521" {
			return
		}
	}
	t.Errorf("repeated requests don't search further: %s", first)
}

func TestOneRuleOfAFile(t *testing.T) {
	p := open(t, nil, filepath.Join(t.TempDir(), "rules.yaml"))
	if got := lastChange(t, p, "search"); !strings.HasPrefix(got, "the rules are those of ") || !strings.HasSuffix(got, "ask the tool that keeps the file, searched 0") {
		t.Error(got)
	}
}

func TestCountersShowTheBindingLimit(t *testing.T) {
	p := open(t, nil, "")
	const check = `{"key": "sk_x", "method": "GET", "path": "/v1/search", "ip": "203.0.113.7"}`
	counters := func(body string) map[string]any { return p.do(t, "POST", "/v1/counters", body).json(t) }
	v := counters(check)
	if v["allowed"] != true || v["binding"] != "search" || v["reason"] != "within" {
		t.Errorf("%v", v)
	}
	if v := counters(strings.Replace(check, "{", `{"cost": 31, `, 1)); v["allowed"] != false || v["binding"] != "search" {
		t.Errorf("a check that costs more than is left: %v", v)
	}
	for range 30 {
		p.send(t, weir.Request{APIKey: "sk_x", Method: "GET", Path: "/v1/search", IP: netip.MustParseAddr("203.0.113.7")})
	}
	v = counters(check)
	if v["allowed"] != false || v["binding"] != "search" || v["reason"] != "limited" {
		t.Errorf("%v", v)
	}
	for _, c := range v["counters"].([]any) {
		c := c.(map[string]any)
		switch used := c["used"].(float64); c["rule"] {
		case "search":
			if used < 0.95 || c["full_at"] == nil || c["algorithm"] != "token_bucket" || c["shadow"] != false {
				t.Errorf("%v", c)
			}
		case "address":
			if used == 0 || used > 0.01 {
				t.Errorf("%v", c)
			}
		}
	}
	v = counters(`{"key": "sk_revoked_1", "path": "/"}`)
	if v["allowed"] != false || v["binding"] != "" || v["reason"] != "denied" || len(v["counters"].([]any)) != 0 {
		t.Errorf("%v", v)
	}
}
