package admin_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/weirhq/weir/internal/admin"
)

func loadOpenAPI(t *testing.T) (*openapi3.T, routers.Router) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("../../docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return doc, router
}

// TestOpenAPINamesEveryRoute, and no other.
func TestOpenAPINamesEveryRoute(t *testing.T) {
	doc, _ := loadOpenAPI(t)
	there := map[string]bool{}
	for _, r := range admin.Routes {
		there[r.Method+" "+r.Path] = true
	}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			if name := method + " " + path; !there[name] {
				t.Errorf("the document has %s, and the API doesn't", name)
			} else {
				delete(there, name)
			}
		}
	}
	for name := range there {
		t.Errorf("the API has %s, and the document doesn't", name)
	}
}

// TestAnswersAreAsOpenAPIHasThem: what is sent and what comes back, good and bad, on every route.
func TestAnswersAreAsOpenAPIHasThem(t *testing.T) {
	_, router := loadOpenAPI(t)
	p := open(t, nil, "")
	seen := map[string]bool{}
	const check = `{"key": "sk_prod_1", "method": "GET", "path": "/v1/search"}`
	kept := p.cooldowns.All()[0].ID.String()
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/v1/rules", "", 200},
		{"PUT", "/v1/rules?force=true", strings.Replace(rules, "30/minute", "20/minute", 1), 200},
		{"PUT", "/v1/rules", "rules: [{id: x, limit: 0/s}]", 422},
		{"PUT", "/v1/rules", "rules: [{id: x, limit: 1/s}]", 422},
		{"POST", "/v1/rules/validate", "rules: [{id: x, limt: 0/s}]", 200},
		{"POST", "/v1/rules/validate", rules, 200},
		{"GET", "/v1/rules/id/search", "", 200},
		{"GET", "/v1/rules/id/none", "", 404},
		{"POST", "/v1/rules/validate?rule=extra", "limt: 0/s", 200},
		{"PUT", "/v1/rules/id/extra?message=more", `{"limit": "9000/minute"}`, 200},
		{"DELETE", "/v1/rules/id/extra?dry_run=true", "", 200},
		{"DELETE", "/v1/rules/id/none", "", 404},
		{"PUT", "/v1/rules/tier/pro?force=true", `{"limit": 500, "capacity": 500}`, 200},
		{"PUT", "/v1/rules/key", `{"key": "sk_vip", "rule": "search", "limit": "300/minute", "expires_in": "1h"}`, 200},
		{"DELETE", "/v1/rules/key", `{"key": "sk_vip", "rule": "search"}`, 200},
		{"GET", "/v1/rules/versions?limit=2", "", 200},
		{"GET", "/v1/rules/versions/1", "", 200},
		{"GET", "/v1/rules/versions/99", "", 404},
		{"GET", "/v1/rules/diff?from=1&to=2", "", 200},
		{"POST", "/v1/rules/rollback", `{"version": 1}`, 200},
		{"POST", "/v1/counters", check, 200},
		{"GET", "/v1/rules/usage", "", 200},
		{"GET", "/v1/rules/usage/search?k=10&by=refused", "", 200},
		{"GET", "/v1/rules/usage/none", "", 404},
		{"GET", "/v1/rules/usage/search?k=1001", "", 400},
		{"POST", "/v1/rules/whatif", `{"rule": "search", "limit": "50/minute", "algorithm": "fixed_window"}`, 200},
		{"POST", "/v1/rules/whatif", `{"rule": "none", "limit": "50/minute"}`, 404},
		{"POST", "/v1/rules/whatif", `{"rule": "search", "limit": "50/m/m"}`, 400},
		{"POST", "/v1/clients", `{"key": "sk_prod_1"}`, 200},
		{"POST", "/v1/clients", `{"client": "00000000"}`, 404},
		{"POST", "/v1/clients", `{"client": "00000000", "ip": "::1"}`, 400},
		{"GET", "/v1/allowlist", "", 200},
		{"PUT", "/v1/allowlist?force=true", `{"entries": ["sk_internal_*"]}`, 200},
		{"GET", "/v1/denylist", "", 200},
		{"PUT", "/v1/denylist?force=true", `{"entries": []}`, 200},
		{"POST", "/v1/denylist/entries", `{"key": "sk_leaked"}`, 200},
		{"POST", "/v1/denylist/entries", `{"key": "sk_leaked", "remove": true}`, 200},
		{"POST", "/v1/denylist/entries", `{"key": "sk_leaked", "remove": true}`, 404},
		{"POST", "/v1/allowlist/entries?dry_run=true", `{"key": "203.0.113.0/24"}`, 200},
		{"POST", "/v1/allowlist/entries", `{"client": "00000000"}`, 404},
		{"POST", "/v1/explain", `{"client": "00000000"}`, 404},
		{"PUT", "/v1/rules/key", `{"client": "00000000", "rule": "search", "limit": "300/minute"}`, 404},
		{"GET", "/v1/cooldowns?k=10", "", 200},
		{"GET", "/v1/cooldowns?k=0", "", 400},
		{"DELETE", "/v1/cooldowns/x", "", 400},
		{"DELETE", "/v1/cooldowns/" + kept, "", 200},
		{"DELETE", "/v1/cooldowns/" + kept, "", 404},
		{"GET", "/v1/now", "", 200},
		{"GET", "/v1/events?outcome=maybe", "", 400}, // one that is good doesn't end: see internal/serve
		{"GET", "/v1/nodes", "", 200},
		{"GET", "/v1/regions", "", 200},
		{"GET", "/v1/top?by=refused&k=10&rule=search", "", 200},
		{"GET", "/v1/top?k=0", "", 400},
		{"GET", "/v1/top?rule=none", "", 404},
		{"POST", "/v1/regions", `{"do": "drain", "region": "eu"}`, 409}, // without other regions
		{"POST", "/v1/regions", `{"do": "move", "region": "eu"}`, 400},
		{"GET", "/v1/session", "", 200},
		{"POST", "/v1/session", `{"token": "none is asked for"}`, 200},
		{"POST", "/v1/session", `{}`, 400},
		{"DELETE", "/v1/session", "", 204},
		{"GET", "/v1/version", "", 200},
		{"GET", "/metrics", "", 200},
		{"GET", "/debug/pprof/heap", "", 404}, // without --pprof
		{"POST", "/v1/explain", check, 200},
		{"POST", "/v1/counters", check, 200},
		{"POST", "/v1/counters/reset", check, 200},
		{"POST", "/v1/counters", `{"key": 7}`, 400},
		{"POST", "/v1/counters/release", `{"key": "k", "slot": "x"}`, 400},
		{"POST", "/v1/counters/release", `{"key": "k", "slot": "00112233445566778899aabbccddeeff", "rule": "search"}`, 404}, // see TestSlotsOfAClient
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, p.URL+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if c.body != "" {
			req.Header.Set("Content-Type", "application/json")
			if !strings.HasPrefix(c.body, "{") {
				req.Header.Set("Content-Type", "application/yaml")
			}
		}
		if c.method == "PUT" && strings.HasPrefix(c.path, "/v1/rules?") || c.path == "/v1/rules" {
			req.Header.Set("If-Match", "*")
		}
		res, err := p.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.status {
			t.Errorf("%s %s: got %d, want %d: %s", c.method, c.path, res.StatusCode, c.status, text)
		}
		req.URL.Host, req.URL.Scheme = "", ""
		req.Body = io.NopCloser(strings.NewReader(c.body))
		route, params, err := router.FindRoute(req)
		if err != nil {
			t.Fatalf("%s %s: %v", c.method, c.path, err)
		}
		seen[route.Method+" "+route.Path] = true
		in := &openapi3filter.RequestValidationInput{
			Request: req, PathParams: params, Route: route,
			Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
		}
		if c.status != 400 {
			if err := openapi3filter.ValidateRequest(t.Context(), in); err != nil {
				t.Errorf("%s %s: the request isn't as documented: %v", c.method, c.path, err)
			}
		}
		err = openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
			RequestValidationInput: in, Status: res.StatusCode, Header: res.Header, Body: io.NopCloser(bytes.NewReader(text)),
		})
		if err != nil {
			t.Errorf("%s %s: the answer isn't as documented: %v\n%s", c.method, c.path, err, text)
		}
	}
	for _, r := range admin.Routes {
		if !seen[r.Method+" "+r.Path] {
			t.Errorf("%s %s isn't tried", r.Method, r.Path)
		}
	}
}
