package envoy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/rulefile"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// byRules returns a service without a configuration, where rules decide.
func byRules(t *testing.T, rules string, opts envoy.Options) *envoy.Service {
	t.Helper()
	doc, err := rulefile.Parse("rules.yaml", []byte(rules))
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := weir.Compile(doc.Rules)
	if err != nil {
		t.Fatal(err)
	}
	return envoy.New(weir.NewLimiter(memstore.New(memstore.Options{}), compiled, weir.Options{}), opts)
}

const rules = `
rules:
  - id: keys
    match: {api_key: present}
    algorithm: fixed_window
    limit: 3/day
  - id: login
    match: {endpoint: "POST /login"}
    by: [ip]
    algorithm: fixed_window
    limit: 43/10s
  - id: tenants
    by: ["attr:tenant"]
    missing: skip
    algorithm: fixed_window
    limit: 2/hour
  - id: subjects
    by: [user]
    missing: skip
    algorithm: fixed_window
    limit: 9/hour
  - id: domains
    by: ["attr:domain"]
    missing: skip
    algorithm: fixed_window
    limit: 1000/day
`

// TestRulesDecide checks that without a configuration, descriptors are attributes of a request.
func TestRulesDecide(t *testing.T) {
	s := byRules(t, rules, envoy.Options{Attributes: map[string]string{"jwt_sub": "user"}})
	for i, c := range []struct{ ask, want string }{
		{"api_key=a", "OK OK:3/DAY-2"},
		{"api_key=a; remote_address=203.0.113.7", "OK OK:3/DAY-1 OK:3/DAY-1"}, // two descriptors of one request
		{"remote_address=203.0.113.7; method=POST path=/login?next=/", "OK OK:43/SECOND-42 OK:43/SECOND-42"},
		{"hits=0 api_key=a", "OK OK:3/DAY-1"},
		{"hits=2 api_key=a", "OVER_LIMIT OVER_LIMIT:3/DAY-0"},
		{"api_key=a", "OK OK:3/DAY-0"}, // the refusal took nothing
		{"hits=0 api_key=a", "OVER_LIMIT OVER_LIMIT:3/DAY-0"},
		{"hits=2 back api_key=a", "OK OK"},
		{"hits=0 api_key=a", "OK OK:3/DAY-2"},
		{"hits=100 back api_key=a", "OK OK"},
		{"hits=0 api_key=a", "OK OK:3/DAY-3"}, // gives back no more than was taken
		{"tenant=x", "OK OK:2/HOUR-1"},
		{"tenant=x; tenant=y", "OK OK:2/HOUR-0 OK:2/HOUR-1"}, // contradicting descriptors are two requests
		{"tenant=y; tenant=x", "OVER_LIMIT OK:2/HOUR-1 OVER_LIMIT:2/HOUR-0"},
		{"tenant=y", "OK OK:2/HOUR-0"}, // the first descriptor took nothing, as the response said
		{"jwt_sub=ann", "OK OK:9/HOUR-8"},
		{"user=ann", "OK OK:9/HOUR-7"},
	} {
		got, err := s.ShouldRateLimit(t.Context(), request("edge", strings.Split(c.ask, ";")...))
		if err != nil {
			t.Fatal(err)
		}
		if c.want != brief(got) {
			t.Errorf("%d: %s: got %s, want %s", i, c.ask, brief(got), c.want)
		}
	}
	got, err := s.ShouldRateLimit(t.Context(), request("edge", "method=POST path=/login remote_address=203.0.113.7"))
	if err != nil {
		t.Fatal(err)
	}
	if l := got.Statuses[0].CurrentLimit; l.GetUnitMultiplier().GetValue() != 10 || l.GetName() != "login" {
		t.Error(l) // 43 in 10 s
	}
	if h := header(got, "X-Ratelimit-Limit"); h != "43" {
		t.Error(got.ResponseHeadersToAdd)
	}
}

// TestChargeAtTheEndOfAStream checks that a charge after a response is counted past the limit, because it is too late
// to refuse the request.
func TestChargeAtTheEndOfAStream(t *testing.T) {
	s := byRules(t, "rules:\n  - {id: tokens, by: [user], algorithm: fixed_window, limit: 100/day, past_limit: book}\n", envoy.Options{})
	for i, c := range []struct{ ask, want string }{
		{"hits=0 user=ann", "OK OK:100/DAY-100"}, // the request
		{"hits=90 user=ann", "OK OK:100/DAY-10"}, // the end of its response
		{"hits=0 user=ann", "OK OK:100/DAY-10"},
		{"hits=250 user=ann", "OK OK:100/DAY-0"},
		{"hits=0 user=ann", "OVER_LIMIT OVER_LIMIT:100/DAY-0"},
		{"hits=200 back user=ann", "OK OK"},
		{"hits=0 user=ann", "OVER_LIMIT OVER_LIMIT:100/DAY-0"}, // 140 are still counted
		{"hits=50 back user=ann", "OK OK"},
		{"hits=0 user=ann", "OK OK:100/DAY-10"},
	} {
		got, err := s.ShouldRateLimit(t.Context(), request("edge", c.ask))
		if err != nil {
			t.Fatal(err)
		}
		if brief(got) != c.want {
			t.Errorf("%d: %s: got %s, want %s", i, c.ask, brief(got), c.want)
		}
	}
}

// TestRefusalByRules checks that a refusal has the headers and body of Weir's other edges.
func TestRefusalByRules(t *testing.T) {
	s := byRules(t, rules, envoy.Options{})
	got, err := s.ShouldRateLimit(t.Context(), request("edge", "hits=4 api_key=b"))
	if err != nil {
		t.Fatal(err)
	}
	if brief(got) != "OVER_LIMIT OVER_LIMIT:3/DAY-0" || !strings.Contains(string(got.RawBody), `"RATE_LIMIT_EXCEEDED"`) || header(got, "X-Ratelimit-Rule") != "keys" {
		t.Errorf("%s %s %v", brief(got), got.RawBody, got.ResponseHeadersToAdd)
	}
	for name, want := range map[string]string{"X-RateLimit-Limit": "3", "X-RateLimit-Remaining": "3", "RateLimit": `"keys";r=3`, "RateLimit-Policy": `"keys";q=3;w=86400, "domains";q=1000;w=86400`, "Cache-Control": "no-store"} {
		if header(got, name) != want {
			t.Errorf("%s is %q, want %q", name, header(got, name), want)
		}
	}
	if header(got, "X-RateLimit-Reset") == "" {
		t.Errorf("no time of the reset in %v", got.ResponseHeadersToAdd)
	}
}

// TestDegradedByRules checks that a client whose counter can't be read still gets its limit and the latest possible
// time of reset.
func TestDegradedByRules(t *testing.T) {
	compiled, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
		{ID: "login", Match: weir.Match{Endpoint: "/login"}, By: []string{"api_key"}, Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 3, Window: time.Hour}}, OnStoreFailure: weir.FailRefuse},
		{ID: "keys", Match: weir.Match{Endpoint: "/feed"}, By: []string{"api_key"}, Algorithm: weir.FixedWindow, Limits: []weir.Limit{{Count: 3, Window: time.Hour}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // virtual time starts at midnight
		s := envoy.New(weir.NewLimiter(silent{}, compiled, weir.Options{}), envoy.Options{})
		for path, code := range map[string]rls.RateLimitResponse_Code{"/login": rls.RateLimitResponse_OVER_LIMIT, "/feed": rls.RateLimitResponse_OK} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			got, err := s.ShouldRateLimit(ctx, request("edge", "hits=1 api_key=b path="+path))
			cancel()
			if err != nil || got.OverallCode != code {
				t.Fatal(path, brief(got), err)
			}
			reset := fmt.Sprint(time.Now().Truncate(time.Hour).Add(time.Hour).Unix())
			for name, want := range map[string]string{"X-RateLimit-Limit": "3", "X-RateLimit-Remaining": "-1", "X-RateLimit-Reset": reset, "X-RateLimit-Policy": "degraded", "RateLimit": ""} {
				if header(got, name) != want {
					t.Errorf("%s: %s is %q, want %q", path, name, header(got, name), want)
				}
			}
		}
	})
}

func header(a *rls.RateLimitResponse, name string) string {
	for _, h := range a.ResponseHeadersToAdd {
		if strings.EqualFold(h.Key, name) {
			return h.Value
		}
	}
	return ""
}

// TestCarriedLimit checks that a limit carried by a descriptor takes precedence over rules, and has one counter
// whatever its number.
func TestCarriedLimit(t *testing.T) {
	s := byRules(t, rules, envoy.Options{})
	for i, c := range []struct {
		number uint32
		with   string
		want   string
	}{
		{2, "", "OK OK:2/HOUR-1"},
		{5, "", "OK OK:5/HOUR-3"},
		{2, "", "OVER_LIMIT OVER_LIMIT:2/HOUR-0"},
		{9, "hits=4 api_key=c", "OVER_LIMIT OK:9/HOUR-7 OVER_LIMIT:3/DAY-0"},
		{9, "", "OK OK:9/HOUR-6"}, // the refused request took nothing
	} {
		req := request("edge", "plan=x")
		req.Descriptors[0].Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: c.number, Unit: typev3.RateLimitUnit_HOUR}
		if c.with != "" {
			req.Descriptors = append(req.Descriptors, request("edge", c.with).Descriptors...)
		}
		got, err := s.ShouldRateLimit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if brief(got) != c.want {
			t.Errorf("%d: got %s, want %s", i, brief(got), c.want)
		}
	}
}
