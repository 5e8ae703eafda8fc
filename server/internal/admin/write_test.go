package admin_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/internal/node/rulestore"
)

// The rules as JSON are those in force, although the JSON is generated only once per document.
func TestRulesAsJSONAreThoseInForce(t *testing.T) {
	p := open(t, nil, "")
	is := func(tag, limit string) {
		t.Helper()
		for range 2 {
			a := p.do(t, "GET", "/v1/rules", "", "Accept: application/json")
			if p.want(t, a, 200, ""); a.header.Get("ETag") != tag || !strings.Contains(a.text, `"limit": "`+limit+`"`) {
				t.Errorf("%s, want %s with %s: %s", a.header.Get("ETag"), tag, limit, a.text)
			}
		}
	}
	is(`"1"`, "30/minute")
	p.want(t, p.do(t, "PUT", "/v1/rules", strings.Replace(rules, "30/minute", "25/minute", 1), `If-Match: "1"`), 200, "")
	is(`"2"`, "25/minute")
}

func TestAWriteIsAVersion(t *testing.T) {
	p := open(t, nil, "")
	next := strings.Replace(rules, "30/minute", "25/minute", 1)
	p.want(t, p.do(t, "PUT", "/v1/rules", next), 428, "IF_MATCH_REQUIRED")
	p.want(t, p.do(t, "PUT", "/v1/rules", next, `If-Match: "7"`), 412, "CONFLICT")
	p.want(t, p.do(t, "PUT", "/v1/rules", next, "If-Match: yesterday"), 400, "BAD_REQUEST")

	a := p.do(t, "PUT", "/v1/rules?dry_run=true", next, `If-Match: "1"`)
	p.want(t, a, 200, "")
	if v := a.json(t); v["version"] != 1.0 || v["dry_run"] != true || !strings.Contains(v["diff"].(string), "+    limit: 25/minute") {
		t.Errorf("a dry run says %v", v)
	}
	a = p.do(t, "PUT", "/rules?message=too+many", next, `If-Match: "1"`)
	p.want(t, a, 200, "")
	if a.header.Get("ETag") != `"2"` {
		t.Errorf("ETag %s", a.header.Get("ETag"))
	}
	if got := p.do(t, "GET", "/v1/rules", ""); got.text != next || got.header.Get("ETag") != `"2"` {
		t.Errorf("in force is %s\n%s", got.header.Get("ETag"), got.text)
	}
	a = p.do(t, "PUT", "/v1/rules", next, `If-Match: "2"`)
	if v := a.json(t); v["version"] != 2.0 || v["diff"] != "" {
		t.Errorf("writing the same again says %v", v)
	}
	p.want(t, p.do(t, "PUT", "/v1/rules", rules, `If-Match: "1"`), 412, "CONFLICT")
	v := p.do(t, "GET", "/v1/rules/versions/2", "").json(t)
	if v["message"] != "too many" || v["parent"] != 1.0 || v["text"] != next {
		t.Errorf("version 2 is %v", v)
	}
}

func TestWarningsNeedForce(t *testing.T) {
	p := open(t, nil, "")
	a := p.do(t, "PUT", "/v1/rules/tier/pro", `{"limit": 100}`)
	p.want(t, a, 422, "RULES_WARN")
	if p.source.InForce().Version != 1 {
		t.Error("it was written in spite of the warning")
	}
	p.want(t, p.do(t, "PUT", "/v1/rules/tier/pro?force=true", `{"limit": 100}`), 200, "")
	// A warning that was accepted once doesn't need force again.
	p.want(t, p.do(t, "PUT", "/v1/rules/id/search", `{"match": {"endpoint": "/v1/search"}, "limit": "31/minute"}`), 200, "")
}

func TestRollbackIsANewVersion(t *testing.T) {
	p := open(t, nil, "")
	p.want(t, p.do(t, "PUT", "/v1/rules?force=true", "rules: [{id: all, by: [], limit: 1/hour}]", `If-Match: "1"`), 200, "")
	p.want(t, p.do(t, "POST", "/v1/rules/rollback", `{"version": 1}`), 200, "")
	p.want(t, p.do(t, "POST", "/v1/rules/rollback", `{"version": 9}`), 404, "NOT_FOUND")
	if got := p.do(t, "GET", "/v1/rules", ""); got.text != rules || got.header.Get("ETag") != `"3"` {
		t.Errorf("in force is %s\n%s", got.header.Get("ETag"), got.text)
	}
	list := p.do(t, "GET", "/v1/rules/versions?limit=1", "").json(t)["versions"].([]any)
	if v := list[0].(map[string]any); v["version"] != 3.0 || v["message"] != "rollback to version 1" || len(list) != 1 {
		t.Errorf("the newest is %v", list)
	}
	if d := p.do(t, "GET", "/v1/rules/diff?from=2", "", "Accept: text/plain").text; !strings.Contains(d, "-rules: [{id: all") {
		t.Errorf("the difference is\n%s", d)
	}
}

// A rollback, an older file, or a list that was written without reading it first doesn't silently remove a block, an
// allow-list entry or an override that an operator made. It needs force.
func TestManualChangesAreNotLostSilently(t *testing.T) {
	p := open(t, nil, "")
	p.want(t, p.do(t, "PUT", "/v1/rules/tier/pro?force=true", `{"limit": 100}`), 200, "") // lowering a limit by force doesn't prevent a rollback
	p.want(t, p.do(t, "POST", "/v1/rules/rollback", `{"version": 1}`), 200, "")
	p.want(t, p.do(t, "POST", "/v1/rules/rollback", `{"version": 2}`), 200, "")
	p.want(t, p.do(t, "PUT", "/v1/denylist", `{"entries": ["sk_revoked_*", "sk_prod_leaked_4711"]}`, `If-Match: "4"`), 200, "")
	p.want(t, p.do(t, "PUT", "/v1/rules/key", `{"key": "sk_prod_customer_1", "rule": "search", "limit": "1/minute"}`), 200, "")
	p.want(t, p.do(t, "PUT", "/v1/rules/key", `{"key": "sk_prod_customer_2", "rule": "search", "limit": "50/minute", "expires_in": "1s"}`), 200, "")
	p.want(t, p.do(t, "PUT", "/v1/allowlist?force=true", `{"entries": ["198.51.100.7"]}`), 200, "")
	hand := p.do(t, "GET", "/v1/rules", "").text
	for _, c := range []struct {
		method, path, body, ifMatch string
		want                        []string
	}{
		{"POST", "/v1/rules/rollback", `{"version": 4}`, "", []string{"sk_p…11", "198.51.100.7", "sk_p…_1"}},
		{"POST", "/v1/rules/rollback", `{"version": 5}`, "", []string{"198.51.100.7", "sk_p…_1"}},
		{"PUT", "/v1/rules", rules, "*", []string{"sk_p…11", "198.51.100.7", "sk_p…_1"}},
		{"PUT", "/v1/denylist", `{"entries": ["sk_revoked_*", "sk_new"]}`, "", []string{"sk_p…11"}},
		{"PUT", "/v1/allowlist", `{"entries": []}`, "*", []string{"198.51.100.7"}},
		{"PUT", "/v1/rules/id/search", `{"id": "search", "match": {"endpoint": "/v1/search"}, "limit": "30/minute"}`, "", []string{"sk_p…_1"}},
	} {
		a := p.do(t, c.method, c.path, c.body, "If-Match: "+c.ifMatch)
		p.want(t, a, 422, "RULES_WARN")
		for _, masked := range c.want {
			if !strings.Contains(a.text, `"text":"`+masked+" ") {
				t.Errorf("%s %s doesn't mention %s: %s", c.method, c.path, masked, a.text)
			}
		}
		if dry := p.do(t, c.method, c.path+"?dry_run=true", c.body, "If-Match: "+c.ifMatch).json(t); dry["needs_force"] != true {
			t.Errorf("a dry run of %s %s needs no force", c.method, c.path)
		}
	}
	if got := p.do(t, "GET", "/v1/rules", ""); got.text != hand {
		t.Fatalf("in force is\n%s", got.text)
	}
	// A rollback needs force also if it would change the numbers of an override.
	p.want(t, p.do(t, "PUT", "/v1/rules/key", `{"key": "sk_prod_customer_1", "rule": "search", "limit": "2/minute"}`), 200, "")
	p.want(t, p.do(t, "POST", "/v1/rules/rollback", `{"version": 8}`), 422, "RULES_WARN")
	p.want(t, p.do(t, "POST", "/v1/rules/rollback?force=true", `{"version": 4}`), 200, "")
	if got := p.do(t, "GET", "/v1/denylist", "").text; strings.Contains(got, "leaked") {
		t.Errorf("after force: %s", got)
	}
}

// Removing something by its name needs no force.
func TestRemovalsByNameNeedNoForce(t *testing.T) {
	p := open(t, nil, "")
	p.want(t, p.do(t, "PUT", "/v1/rules/key", `{"key": "sk_vip", "rule": "search", "limit": "100/minute"}`), 200, "")
	p.want(t, p.do(t, "DELETE", "/v1/rules/key", `{"key": "sk_vip", "rule": "search"}`), 200, "")
	p.want(t, p.do(t, "PUT", "/v1/rules/key", `{"key": "sk_vip", "rule": "search", "limit": "100/minute"}`), 200, "")
	p.want(t, p.do(t, "DELETE", "/v1/rules/id/search", ""), 200, "")
	p.want(t, p.do(t, "PUT", "/v1/denylist", `{"entries": []}`, `If-Match: "5"`), 200, "")
}

// TestWriters checks that of several writers that change the same version, one succeeds, and that no version is lost.
func TestWriters(t *testing.T) {
	p := open(t, nil, "")
	const writers, each = 50, 3
	var won sync.Map
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for range each {
				at := p.do(t, "GET", "/v1/rules", "").header.Get("ETag")
				doc := fmt.Sprintf("rules: [{id: all, by: [ip], limit: %d/hour}]", 1000+w)
				a := p.do(t, "PUT", "/v1/rules?force=true", doc, "If-Match: "+at)
				switch {
				case a.status == 200 && a.json(t)["diff"] != "":
					if _, twice := won.LoadOrStore(a.json(t)["version"], w); twice {
						t.Errorf("version %v was won twice", a.json(t)["version"])
					}
				case a.status != 200 && a.status != 412:
					t.Errorf("%d: %s", a.status, a.text)
				}
			}
		})
	}
	all.Wait()
	list := p.do(t, "GET", "/v1/rules/versions?limit=1000", "").json(t)["versions"].([]any)
	for i, v := range list {
		n := float64(len(list) - i)
		v := v.(map[string]any)
		if v["version"] != n || v["parent"] != n-1 {
			t.Errorf("version %v of parent %v at place %v of the history", v["version"], v["parent"], n)
		}
		if _, ok := won.Load(n); n > 1 && !ok {
			t.Errorf("no writer's response has version %v", n)
		}
	}
}

func TestBadDocuments(t *testing.T) {
	p := open(t, nil, "")
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
	for name, c := range map[string]struct {
		doc    string
		status int
		want   string
	}{
		"blank fields":  {"rules:\n  - id:\n    limit:\n", 422, `"line":2`},
		"nothing":       {"", 422, "RULES_INVALID"},
		"10 MB":         {"# " + strings.Repeat("x", 10<<20), 413, "larger than"},
		"a bomb":        {bomb, 422, `"line":1`},
		"a zero limit":  {"rules: [{id: a, limit: 0/s}]", 422, `"column":24`},
		"unknown field": {"rules:\n  - id: a\n    limt: 5/s\n", 422, "limit"},
		"not YAML":      {"rules: [", 422, `"line":1`},
	} {
		a := p.do(t, "PUT", "/v1/rules?force=true", c.doc, `If-Match: "1"`)
		if a.status != c.status || !strings.Contains(a.text, c.want) {
			t.Errorf("%s: got %d, want %d with %s: %.300s", name, a.status, c.status, c.want, a.text)
		}
		if v := p.do(t, "POST", "/v1/rules/validate", c.doc); c.status == 422 && (v.status != 200 || v.json(t)["valid"] != false) {
			t.Errorf("%s: validate says %d %.300s", name, v.status, v.text)
		}
	}
	if p.source.InForce().Version != 1 {
		t.Errorf("version %d is in force", p.source.InForce().Version)
	}
}

// TestOneRuleIsLookedAt checks that an error in a single rule's own text has line numbers of that text, and that an
// error that comes from the rest of the rules has those of the whole document.
func TestOneRuleIsLookedAt(t *testing.T) {
	p := open(t, nil, "")
	look := func(id, rule string) string { return p.do(t, "POST", "/v1/rules/validate?rule="+id, rule).text }
	for _, c := range [][3]string{
		{"search", "id: search\nlimit: 5/minuteX\n", `"valid":false,"rules":0,"problems":[{"file":"rule","line":2,"column":8,"path":"limit"`},
		{"search", "limit: 5/s\ntier: none\n", `"problems":[{"file":"rules"`},
		{"search", "limit: 1/minute\n", `"valid":true`},
		{"search", "limit: 1/minute\n", `"path":"rules[1].limit","rule":"search","text":"the limit is cut by more than half`},
		{"fresh", "limit: 5/s\n", `"valid":true,"rules":4,"problems":[],"warnings":[]`},
	} {
		if got := look(c[0], c[1]); !strings.Contains(got, c[2]) {
			t.Errorf("%s %q: %s, want %s", c[0], c[1], got, c[2])
		}
	}
	if p.source.InForce().Version != 1 {
		t.Errorf("version %d is in force", p.source.InForce().Version)
	}
}

// TestRejectedRulesAreNotQuoted checks that an error about a rejected file says where the fault is, but doesn't quote
// the text.
func TestRejectedRulesAreNotQuoted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	p := open(t, nil, file)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.source.Run(ctx) }()
	bad := "rules: [{id: a, limit: 5/s, override: {sk_secret: {limit: 0/s}}}]"
	if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
		t.Fatal(err)
	}
	for p.source.Rejected() == "" {
		runtime.Gosched()
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if told := p.source.Rejected(); !strings.Contains(told, ":1:") || strings.Contains(told+p.log.String(), "sk_secret") {
		t.Errorf("it says %q, and the log\n%s", told, p.log.String())
	}
}

// TestTheNewestRulesAreRejected checks a node that can't apply the newest rules, because an older or newer release
// wrote them. The error for an operator who changes the rules says so, and what to do.
func TestTheNewestRulesAreRejected(t *testing.T) {
	p := open(t, nil, "")
	if _, err := p.dir.Append(t.Context(), 0, rulestore.Version{Parent: 1, Author: "ada", Text: []byte("rules: [{id: a, limit: 5/s, match: {endpoint: /v1/*}}]")}); err != nil {
		t.Fatal(err)
	}
	for p.source.Rejected() == "" {
		runtime.Gosched()
	}
	etag := p.do(t, "GET", "/v1/rules", "").header.Get("ETag")
	for _, path := range []string{"/v1/rules", "/v1/denylist"} {
		body := map[string]string{"/v1/rules": rules + "# new", "/v1/denylist": `{"entries": ["sk_leaked"]}`}[path]
		a := p.do(t, "PUT", path, body, "If-Match: "+etag)
		p.want(t, a, 412, "NEWEST_REJECTED")
		for _, want := range []string{"goes on with version 1 (version 2: a problem at version 2:1:", "--if-version 2", "weir rules rollback"} {
			if !strings.Contains(a.text, want) {
				t.Errorf("PUT %s: it doesn't say %q: %s", path, want, a.text)
			}
		}
	}
	p.want(t, p.do(t, "PUT", "/v1/rules?force=true", rules+"# new", `If-Match: "2"`), 200, "")
	if a := p.do(t, "GET", "/v1/rules/versions/3-abcd", ""); a.status != 404 || !strings.Contains(a.text, "no such version of the rules: 3-abcd") {
		t.Errorf("an orphan that doesn't exist: %d %s", a.status, a.text)
	}
	p.want(t, p.do(t, "GET", "/v1/rules/diff?from=1&to=3-abcd", ""), 404, "NOT_FOUND")
	p.want(t, p.do(t, "GET", "/v1/rules/diff?from=one", ""), 400, "BAD_REQUEST")
	p.want(t, p.do(t, "PUT", "/v1/rules", rules+"# newer", `If-Match: "2"`), 412, "CONFLICT")
}

// If rules that this node can't read are replaced, a block in the rules that are in force here isn't silently lost.
func TestABlockIsntLostWithRulesThatCantBeRead(t *testing.T) {
	p := open(t, nil, "")
	p.want(t, p.do(t, "PUT", "/v1/denylist?force=true", `{"entries": ["sk_prod_leaked_4711"]}`, `If-Match: "1"`), 200, "")
	head, err := p.dir.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	next := head.Next()
	next.Author, next.Text = "ada", []byte("blacklist: [sk_prod_leaked_4711]\nrules: []\nof_another_release: true\n")
	if _, err := p.dir.Append(t.Context(), 0, next); err != nil {
		t.Fatal(err)
	}
	for p.source.Rejected() == "" {
		runtime.Gosched()
	}
	for _, c := range []struct{ method, path, body string }{
		{"PUT", "/v1/rules", rules},
		{"POST", "/v1/rules/rollback", `{"version": 1}`},
	} {
		a := p.do(t, c.method, c.path, c.body, `If-Match: "3"`)
		p.want(t, a, 422, "RULES_WARN")
		if !strings.Contains(a.text, `sk_p…11 is blocked now`) {
			t.Errorf("%s %s: %s", c.method, c.path, a.text)
		}
	}
	p.want(t, p.do(t, "POST", "/v1/rules/rollback", `{"version": 2}`), 200, "")
}
