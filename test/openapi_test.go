package test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	adminapi "github.com/weirhq/weir/server/internal/admin"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// contract is an OpenAPI document of one of the APIs.
type contract struct {
	*openapi3.T
	router routers.Router
}

// contractIn loads a document from docs/reference.
func contractIn(t testing.TB, name string) contract {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("../docs/reference/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	doc.Servers = nil // any server
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return contract{doc, router}
}

// exchange is a request and its response.
type exchange struct {
	method, path, body string
	headers            []string // "Name: value"
	status             int
	answered           http.Header
	answer             string
}

// ask sends the request and records the response.
func (e *exchange) ask(t testing.TB, url string) {
	t.Helper()
	res, text := call(t, e.method, url+e.path, e.body, e.headers...)
	e.status, e.answered, e.answer = res.StatusCode, res.Header, text
}

// holds checks an exchange against the document and returns the method and path of its route. The error is about the
// request, which may be invalid on purpose.
func (c contract) holds(t testing.TB, e *exchange) (route string, bad error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), e.method, e.path, strings.NewReader(e.body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range e.headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	found, params, err := c.router.FindRoute(req)
	if err != nil {
		t.Fatalf("%s %s: %v", e.method, e.path, err)
	}
	in := &openapi3filter.RequestValidationInput{
		Request: req, PathParams: params, Route: found,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
	}
	bad = openapi3filter.ValidateRequest(t.Context(), in)
	err = openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: e.status, Header: e.answered, Body: io.NopCloser(bytes.NewReader([]byte(e.answer))),
	})
	if err != nil {
		t.Errorf("%s %s: the answer isn't as documented: %v\n%s", e.method, e.path, err, e.answer)
	}
	return found.Method + " " + found.Path, bad
}

// The document of the admin API has exactly the routes of the API.
func TestAdminOpenAPINamesEveryRoute(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	for _, r := range adminapi.Routes {
		there[r.Method+" "+r.Path] = true
	}
	for path, item := range contractIn(t, "openapi.yaml").Paths.Map() {
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

const documentedRules = `# who may do how much
tiers:
  free: 100/minute
  pro: {limit: 1000/minute, burst: 200}
keys: {"sk_prod_*": pro}
rules:
  - id: quota          # by tier
  - id: search
    match: {endpoint: /v1/search}
    limit: 30/minute
  - id: address
    by: [ip]
    limit: 5000/minute
  - id: login
    match: {endpoint: /login}
    limit: 1/day
    abuse: {refusals: 1/hour, cooldown: 1h}
blacklist: ["sk_revoked_*"]
`

// On every route of the admin API, requests and responses match the document, for valid and invalid requests.
func TestAdminAnswersAreAsDocumented(t *testing.T) {
	t.Parallel()
	c := contractIn(t, "openapi.yaml")
	n := serve(t, "--seed-rules", write(t, filepath.Join(t.TempDir(), "rules.yaml"), documentedRules))
	until(t, func() error { // until a client is in a cooldown
		_, text := call(t, "POST", n.HTTP+"/v1/check", `{"key": "sk_prod_2", "path": "/login"}`)
		if !strings.Contains(text, `"COOLDOWN"`) {
			return errors.New(text)
		}
		return nil
	})
	var kept struct{ Cooldowns []struct{ ID string } }
	_, text := call(t, "GET", n.Admin+"/v1/cooldowns", "")
	if err := json.Unmarshal([]byte(text), &kept); err != nil || len(kept.Cooldowns) != 1 {
		t.Fatal(text, err)
	}
	seen := map[string]bool{}
	const check = `{"key": "sk_prod_1", "method": "GET", "path": "/v1/search"}`
	for _, e := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/v1/rules", "", 200},
		{"PUT", "/v1/rules?force=true", strings.Replace(documentedRules, "30/minute", "20/minute", 1), 200},
		{"PUT", "/v1/rules", "rules: [{id: x, limit: 0/s}]", 422},
		{"PUT", "/v1/rules", "rules: [{id: x, limit: 1/s}]", 422},
		{"POST", "/v1/rules/validate", "rules: [{id: x, limt: 0/s}]", 200},
		{"POST", "/v1/rules/validate", documentedRules, 200},
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
		{"DELETE", "/v1/cooldowns/" + kept.Cooldowns[0].ID, "", 200},
		{"DELETE", "/v1/cooldowns/" + kept.Cooldowns[0].ID, "", 404},
		{"GET", "/v1/now", "", 200},
		{"GET", "/v1/events?outcome=maybe", "", 400}, // a valid one doesn't end: see events_test.go
		{"GET", "/v1/nodes", "", 200},
		{"GET", "/v1/regions", "", 200},
		{"GET", "/v1/top?by=refused&k=10&rule=search", "", 200},
		{"GET", "/v1/top?k=0", "", 400},
		{"GET", "/v1/top?rule=none", "", 404},
		{"POST", "/v1/regions", `{"do": "drain", "region": "eu"}`, 409}, // this node has no other regions
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
		{"POST", "/v1/counters/release", `{"key": "k", "slot": "00112233445566778899aabbccddeeff", "rule": "search"}`, 404}, // see TestCountersAreAsDocumented
	} {
		x := exchange{method: e.method, path: e.path, body: e.body}
		switch {
		case strings.HasPrefix(e.body, "{"):
			x.headers = append(x.headers, "Content-Type: application/json")
		case e.body != "":
			x.headers = append(x.headers, "Content-Type: application/yaml")
		}
		if e.method == "PUT" && strings.HasPrefix(e.path, "/v1/rules?") || e.path == "/v1/rules" {
			x.headers = append(x.headers, "If-Match: *")
		}
		x.ask(t, n.Admin)
		if x.status != e.status {
			t.Errorf("%s %s: got %d, want %d: %s", e.method, e.path, x.status, e.status, x.answer)
		}
		route, bad := c.holds(t, &x)
		if seen[route] = true; bad != nil && e.status != 400 {
			t.Errorf("%s %s: the request isn't as documented: %v", e.method, e.path, bad)
		}
	}
	for _, r := range adminapi.Routes {
		if !seen[r.Method+" "+r.Path] {
			t.Errorf("%s %s isn't tried", r.Method, r.Path)
		}
	}
}

const countedRules = `rules:
  - {id: spend, amount: usd, algorithm: fixed_window, limit: 10.5/month, calendar: {tz: Europe/Berlin, day: 15}}
  - {id: tokens, amount: tokens, limit: 1000/minute}
  - {id: flight, algorithm: concurrency, limit: 200, slot_ttl: 1h}
  - {id: search, algorithm: concurrency, limit: 3, slot_ttl: 1h, match: {endpoint: /v1/search}}
  - {id: calls, algorithm: fixed_window, limit: 1000000/hour, cost: 499999, shadow: true}
`

// The admin API's responses about a client's budgets and slots, and about releasing a slot, match the document for
// every role, and also while Redis is lost.
func TestCountersAreAsDocumented(t *testing.T) {
	t.Parallel()
	c := contractIn(t, "openapi.yaml")
	const ada, bob = "an-operators-long-token", "a-readers-long-token"
	sum := func(token string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(token))) }
	tokens := write(t, filepath.Join(t.TempDir(), "tokens"), "ada operate "+sum(ada)+"\nbob read "+sum(bob)+"\n")
	redis := redistest.New(t, redistest.Options{})
	n := serve(t, "--admin-tokens", tokens, "--store", "redis://"+redis.Addr, "--store-timeout", "5s", "--rules", write(t, filepath.Join(t.TempDir(), "rules.yaml"), countedRules))
	until(t, func() error {
		if r := ready(t, n.Admin+"/readyz"); r.Store.Status != "up" {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	asked := func(path, token, body string, status int, want ...string) string {
		t.Helper()
		x := exchange{method: "POST", path: path, body: "{" + body + "}", headers: []string{"Content-Type: application/json", bearer(token)}}
		x.ask(t, n.Admin)
		if x.status != status {
			t.Errorf("%s: got %d, want %d: %s", body, x.status, status, x.answer)
		}
		for _, w := range want {
			if !strings.Contains(x.answer, w) {
				t.Errorf("%s: want %s in %s", body, w, x.answer)
			}
		}
		if _, bad := c.holds(t, &x); bad != nil && status != 400 {
			t.Errorf("%s: the request isn't as documented: %v", body, bad)
		}
		return x.answer
	}
	take := func(body string) {
		t.Helper()
		if a := check(t, n, "{"+body+"}"); !a.Allowed {
			t.Fatalf("%s: %+v", body, a)
		}
	}
	const client = `"key": "sk_1", "path": "/v1/search"`
	const counters, release = "/v1/counters", "/v1/counters/release"
	asked(counters, bob, client, 200, `"allowed":true`, `"max":10.5`, `"limit":"10.5/month"`)
	take(client + `, "amounts": {"usd": 10.499999, "tokens": 250}`)
	take(`"key": "sk_1"`)
	text := asked(counters, bob, client, 200, `"remaining":0.000001`, `"window_end":`, `"runs_out_at":`, `"in_flight":2`, `"slots":[{`)
	take(`"key": "sk_1", "amounts": {"usd": 0.000001}`)
	asked(counters, bob, client, 200, `"allowed":false`, `"binding":"spend"`, `"refuses":true`)
	asked(counters, bob, `"key": "sk_2", "amounts": {"usd": 10.6}`, 200, `"allowed":false`, `"in_flight":0`)

	var found adminapi.Counters
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		t.Fatal(err)
	}
	id := ""
	for _, counted := range found.Counters {
		if counted.Rule == "search" && len(counted.Slots) == 1 {
			id = counted.Slots[0].ID
		}
	}
	slot := client + fmt.Sprintf(`, "slot": %q`, id)
	asked(release, bob, slot, 403, "FORBIDDEN")
	asked(release, "", slot, 401, "UNAUTHORIZED")
	asked(release, ada, client, 400, "slot: must be the id of a slot")
	asked(release, ada, slot+`, "rule": 7`, 400, "rule: must be a string")
	asked(release, ada, slot+`, "slto": 7`, 400, "there is no field")
	asked(release, ada, `"key": "sk_2", "slot": "`+id+`"`, 404, "no slot with this id is taken")
	asked(release, ada, slot+`, "rule": "calls"`, 404, "rule: no rule of this id limits")
	asked(release, ada, slot+`, "rule": "search"`, 200, `{"released":["search"]}`)
	asked(release, ada, slot, 200, `{"released":["flight"]}`)
	asked(release, ada, slot, 404, "it was released, or has ended")
	asked("/v1/counters/reset", ada, `"key": "sk_1"`, 200)
	asked(counters, bob, client, 200, `"allowed":true`)
	redis.Kill()
	asked(release, ada, slot, 503, "STORE_UNAVAILABLE")
	asked(counters, bob, client, 200, `"degraded":true`)
}

// The document of the check API has exactly the routes and fields of the API.
func TestCheckOpenAPINamesEveryRouteAndField(t *testing.T) {
	t.Parallel()
	doc := contractIn(t, "openapi-check.yaml")
	if got := slices.Sorted(maps.Keys(doc.Paths.Map())); !slices.Equal(got, checkapi.Paths) {
		t.Errorf("the document has %v, and the API %v", got, checkapi.Paths)
	}
	for name, v := range map[string]any{"Check": checkapi.CheckRequest{}, "Decision": checkapi.CheckResponse{}} {
		var fields, required []string
		for f := range reflect.TypeOf(v).Fields() {
			field, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if fields = append(fields, field); options == "" {
				required = append(required, field)
			}
		}
		slices.Sort(fields)
		schema := doc.Components.Schemas[name].Value
		if got := slices.Sorted(maps.Keys(schema.Properties)); !slices.Equal(got, fields) {
			t.Errorf("%s has %v in the document, and %v in the API", name, got, fields)
		}
		if !slices.Equal(schema.Required, required) {
			t.Errorf("of %s %v are required in the document, and %v always there", name, schema.Required, required)
		}
	}
}

// partlyGone is a store that can't reach the counters of the rule "lost".
type partlyGone struct{ *memstore.Store }

func (s partlyGone) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	if !slices.ContainsFunc(charges, func(c counter.Charge) bool { return c.Policy.Rule == "lost" }) {
		s.Store.Take(ctx, charges, results)
		return
	}
	for i := range results { // requests for this rule match no other rule
		results[i] = counter.Result{Err: errors.New("gone")}
	}
}

// On every route of the check API, requests and responses match the document, for valid and invalid requests. Part of
// the store is lost.
func TestCheckAnswersAreAsDocumented(t *testing.T) {
	t.Parallel()
	c := contractIn(t, "openapi-check.yaml")
	rules := weir.Rules{Version: 42, Deny: []string{"sk_bad"}, Rules: []weir.Rule{
		{ID: "orders", Match: weir.Match{Endpoint: "/v1/orders/{id}"}, Limits: []weir.Limit{{Count: 3, Window: 3600e9, Burst: 2}}},
		{ID: "login", Match: weir.Match{Endpoint: "/login"}, By: []string{"user"}, Missing: weir.MissingRefuse, Limits: []weir.Limit{weir.PerHour(5)}},
		{ID: "tokens", Match: weir.Match{Endpoint: "/chat"}, Amount: "tokens", Limits: []weir.Limit{weir.PerMinute(2000)}},
		{ID: "spend", Match: weir.Match{Endpoint: "/chat"}, Amount: "usd", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 1, Fraction: 500_000, Window: 3600e9}}},
		{ID: "streams", Match: weir.Match{Endpoint: "/stream"}, Algorithm: weir.Concurrency, SlotTTL: time.Minute, Limits: []weir.Limit{{Count: 1}}},
		{ID: "lost", Match: weir.Match{Endpoint: "/lost"}, OnStoreFailure: weir.FailRefuse, Limits: []weir.Limit{weir.PerHour(5)}},
	}}
	set, err := weir.Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	limiter := weir.NewLimiter(partlyGone{memstore.New(memstore.Options{})}, set, weir.Options{Secret: []byte("of the tests")})
	api := httptest.NewServer(checkapi.New(limiter, nil, checkapi.Options{}))
	defer api.Close()
	receipt := ""
	tried := map[string]bool{}
	for _, e := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/v1/check", `{"key": "a", "method": "GET", "path": "/v1/orders/17", "ip": "203.0.113.7", "attributes": {"user": "42"}, "receipt": true}`, 200},
		{"POST", "/v1/check", `{"key": "a", "path": "/v1/orders/17"}`, 200},
		{"POST", "/v1/check", `{"key": "a", "path": "/v1/orders/17"}`, 429},
		{"POST", "/v1/check", `{"key": "a", "path": "/v1/orders/17", "cost": 0}`, 429},
		{"POST", "/v1/check", `{"key": "sk_bad"}`, 403},
		{"POST", "/v1/check", `{"path": "/login"}`, 403},
		{"POST", "/v1/check", `{"path": "/lost"}`, 503},
		{"POST", "/v1/check", fmt.Sprintf(`{"path": "/%s"}`, strings.Repeat("x", 5000)), 400},
		{"POST", "/v1/check", `{"key": 7}`, 400},
		{"POST", "/v1/check", `{"key": "` + strings.Repeat("x", 70<<10) + `"}`, 413},
		{"POST", "/v1/check", `{}`, 200},
		{"POST", "/v1/checks", `{"checks": [{"key": "a"}, {"key": "sk_bad"}, {"key": 7}, {"path": "/lost"}, {"key": "b", "path": "/v1/orders/1", "receipt": true}, {"key": "b", "path": "/v1/orders/1", "cost": 9}]}`, 200},
		{"POST", "/v1/checks", `{"checks": 7}`, 400},
		{"POST", "/v1/take", `{"key": "job:42", "limit": "100/minute", "burst": 20, "cost": 1}`, 200},
		{"POST", "/v1/take", `{"key": "job:43", "limit": "1/minute", "cost": 5}`, 429},
		{"POST", "/v1/take", `{"key": "job:44", "limit": "60/minute", "algorithm": "leaky_bucket", "mode": "queue", "receipt": true}`, 200},
		{"POST", "/v1/take", `{"key": "job:45", "limit": "often"}`, 400},
		{"POST", "/v1/refund", `{"receipt": "none"}`, 400},
		{"POST", "/v1/refund", `{"receipt": "RECEIPT"}`, 200},
		{"POST", "/v1/refund", `{"receipt": "RECEIPT"}`, 409},
		{"POST", "/v1/check", `{"key": "a", "path": "/chat", "attributes": {"model": "gpt"}, "amounts": {"tokens": 1500, "usd": 0.012}, "reserve": "2m", "id": "1"}`, 200},
		{"POST", "/v1/settle", `{"receipt": "RECEIPT", "amounts": {"tokens": 812.5, "usd": 3}, "status": 200}`, 200},
		{"POST", "/v1/settle", `{"receipt": "RECEIPT", "unknown": true}`, 200},
		{"POST", "/v1/settle", `{"receipt": "none", "status": 200}`, 400},
		{"POST", "/v1/check", `{"key": "a", "path": "/chat", "amounts": {"tokens": 1, "usd": 1}, "reserve": 120.5}`, 429},
		{"POST", "/v1/check", `{"key": "a", "path": "/chat", "amounts": {"tokens": 9000000001}}`, 400},
		{"POST", "/v1/check", `{"key": "a", "path": "/stream"}`, 200},
		{"POST", "/v1/check", `{"key": "a", "path": "/stream"}`, 429},
		{"POST", "/v1/renew", `{"receipt": "RECEIPT"}`, 200},
		{"POST", "/v1/renew", `{"receipts": ["RECEIPT", "none"]}`, 200},
		{"POST", "/v1/renew", `{"receipt": "none"}`, 400},
		{"POST", "/v1/release", `{"receipt": "RECEIPT"}`, 200},
		{"POST", "/v1/release", `{"receipt": "none"}`, 400},
		{"POST", "/v1/checks", `{"checks": [{"key": "b", "path": "/stream", "id": "1"}, {"key": "b", "path": "/stream"}, {"key": "b", "path": "/chat", "amounts": {"usd": 0.5}}]}`, 200},
	} {
		x := exchange{method: e.method, path: e.path, body: strings.Replace(e.body, "RECEIPT", receipt, 1), headers: []string{"Content-Type: application/json"}}
		x.ask(t, api.URL)
		cut := x.body[:min(len(x.body), 200)]
		if x.status != e.status {
			t.Errorf("%s %s: got %d, want %d: %s", e.path, cut, x.status, e.status, x.answer)
		}
		var d checkapi.CheckResponse
		if json.Unmarshal([]byte(x.answer), &d) == nil && d.Receipt != "" {
			receipt = d.Receipt
		}
		route, bad := c.holds(t, &x)
		_, path, _ := strings.Cut(route, " ")
		tried[path] = true
		// The document rejects these requests, too.
		refused := e.status == 413 || strings.Contains(x.body, ": 7}") || strings.Contains(x.body, "checks\": 7") || strings.Contains(x.body, "9000000001")
		if (bad != nil) != refused {
			t.Errorf("%s %s: the request isn't as documented: %v", e.path, cut, bad)
		}
	}
	for _, path := range checkapi.Paths {
		if !tried[path] {
			t.Errorf("%s isn't tried", path)
		}
	}
}
