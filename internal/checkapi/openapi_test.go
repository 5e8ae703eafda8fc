package checkapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
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
	"github.com/weirhq/weir/internal/checkapi"
)

func loadOpenAPI(t *testing.T) (*openapi3.T, routers.Router) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("../../docs/openapi-check.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	doc.Servers = nil // any
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return doc, router
}

// TestOpenAPINamesEveryRouteAndField, and no other.
func TestOpenAPINamesEveryRouteAndField(t *testing.T) {
	doc, _ := loadOpenAPI(t)
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

// TestAnswersAreAsOpenAPIHasThem: what is sent and what comes back, good and bad, on every route.
func TestAnswersAreAsOpenAPIHasThem(t *testing.T) {
	_, router := loadOpenAPI(t)
	rules := weir.Rules{Version: 42, Deny: []string{"sk_bad"}, Rules: []weir.Rule{
		{ID: "orders", Match: weir.Match{Endpoint: "/v1/orders/{id}"}, Limits: []weir.Limit{{Count: 3, Window: 3600e9, Burst: 2}}},
		{ID: "login", Match: weir.Match{Endpoint: "/login"}, By: []string{"user"}, Missing: weir.MissingRefuse, Limits: perHour(5)},
		{ID: "tokens", Match: weir.Match{Endpoint: "/chat"}, Amount: "tokens", Limits: []weir.Limit{weir.PerMinute(2000)}},
		{ID: "spend", Match: weir.Match{Endpoint: "/chat"}, Amount: "usd", Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 1, Fraction: 500_000, Window: 3600e9}}},
		{ID: "streams", Match: weir.Match{Endpoint: "/stream"}, Algorithm: weir.Concurrency, SlotTTL: time.Minute, Limits: []weir.Limit{{Count: 1}}},
		{ID: "lost", Match: weir.Match{Endpoint: "/lost"}, OnStoreFailure: weir.FailRefuse, Limits: perHour(5)},
	}}
	store := &brokenStore{Store: newStore(), rules: []string{"lost"}}
	api := checkapi.New(newLimiter(t, store, rules), nil, checkapi.Options{})
	receipt := ""
	tried := map[string]bool{}
	for _, c := range []struct {
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
		body := strings.Replace(c.body, "RECEIPT", receipt, 1)
		request := func() *http.Request {
			r := httptest.NewRequest(c.method, c.path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			return r
		}
		w := httptest.NewRecorder()
		api.ServeHTTP(w, request())
		if w.Code != c.status {
			t.Errorf("%s %s: got %d, want %d: %s", c.path, cutBody(body), w.Code, c.status, w.Body)
		}
		var d checkapi.CheckResponse
		if json.Unmarshal(w.Body.Bytes(), &d) == nil && d.Receipt != "" {
			receipt = d.Receipt
		}
		r := request()
		route, params, err := router.FindRoute(r)
		if err != nil {
			t.Fatalf("%s %s: %v", c.method, c.path, err)
		}
		tried[route.Path] = true
		in := &openapi3filter.RequestValidationInput{
			Request: r, PathParams: params, Route: route,
			Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
		}
		bad := c.status == 413 || strings.Contains(body, ": 7}") || strings.Contains(body, "checks\": 7") || strings.Contains(body, "9000000001") // the document refuses them as well
		if err := openapi3filter.ValidateRequest(t.Context(), in); (err != nil) != bad {
			t.Errorf("%s %s: the request isn't as documented: %v", c.path, cutBody(body), err)
		}
		err = openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
			RequestValidationInput: in, Status: w.Code, Header: w.Header(), Body: io.NopCloser(bytes.NewReader(w.Body.Bytes())),
		})
		if err != nil {
			t.Errorf("%s %s: the answer isn't as documented: %v\n%s", c.path, cutBody(body), err, w.Body)
		}
	}
	for _, path := range checkapi.Paths {
		if !tried[path] {
			t.Errorf("%s isn't tried", path)
		}
	}
}

func cutBody(s string) string { return s[:min(len(s), 200)] }
