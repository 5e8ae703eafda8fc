package httplimit_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
)

func identify(id httplimit.Identity, r *http.Request) weir.Request {
	var req weir.Request
	if err := httplimit.NewIdentifier(id, nil).Identify(r, &req); err != nil {
		return weir.Request{APIKey: ambiguous}
	}
	return req
}

// ambiguous marks a key that can be read in more than one way.
const ambiguous = "?"

// request returns a GET request with headers, given as names and values.
func request(target string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func known(keys ...string) httplimit.KnownKeys {
	k := httplimit.KnownKeys{}
	for _, key := range keys {
		k[sha256.Sum256([]byte(key))] = struct{}{}
	}
	return k
}

// knownTokens verifies the tokens that it maps to claims, and no others.
type knownTokens map[string]httplimit.Claims

var _ httplimit.TokenVerifier = knownTokens{}

func (k knownTokens) Verify(token string) (httplimit.Claims, string) {
	switch claims, ok := k[token]; {
	case ok:
		return claims, ""
	case strings.Count(token, ".") != 2:
		return nil, notAToken
	}
	return nil, wrongSignature
}

// These are the reasons that knownTokens returns.
const (
	notAToken      = "the token doesn't have three parts"
	wrongSignature = "the token's signature is wrong"
)

// Two tokens. A test that maps genuine to claims has a verified token; no test maps forged.
const genuine, forged = "header.claims.signature", "header.claims.forged"

func TestSources(t *testing.T) {
	verifier := knownTokens{genuine: {"sub": "u-17", "plan": "pro", "n": json.Number("42"), "admin": true, "list": []any{"x"}, "key": "sk_9"}}
	const token, forged = "Bearer " + genuine, "Bearer " + forged
	type source = httplimit.Source
	for _, c := range []struct {
		name     string
		source   source
		request  *http.Request
		want     string
		verified bool
	}{
		{"the default", source{}, request("/", "X-API-Key", "k"), "k", false},
		{"the default, spelled otherwise", source{}, request("/", "x-api-KEY", "k"), "k", false},
		{"nothing", source{}, request("/?api_key=k", "Authorization", "Bearer k"), "", false},
		{"another header", source{Header: "x-key"}, request("/", "X-Key", "k"), "k", false},
		{"two lines of it", source{}, request("/", "X-API-Key", "k", "X-API-Key", "other"), ambiguous, false},
		{"two lines of it beside a parameter", source{Header: "X-Key", Query: "k"}, request("/?k=q", "X-Key", "k", "X-Key", "other"), ambiguous, false},
		{"the host", source{Header: "host"}, request("http://Tenant.example/"), "tenant.example", false},
		{"a parameter", source{Query: "api_key"}, request("/?a=1&api_key=k"), "k", false},
		{"a parameter given twice", source{Query: "api_key"}, request("/?a=1&api_key=k&api_key=other"), ambiguous, false},
		{"a parameter in disguise", source{Query: "api_key"}, request("/?a=1&api%5Fkey=%6B"), "k", false},
		{"no such parameter", source{Query: "api_key"}, request("/?apikey=k"), "", false},
		{"a bearer token", source{Bearer: true}, request("/", "Authorization", "bEaReR  k "), "k", false},
		{"a bearer token given twice", source{Bearer: true, Query: "k"}, request("/?k=q", "Authorization", "Bearer k", "Authorization", "Bearer other"), ambiguous, false},
		{"a claim of one of two tokens", source{Claim: "key"}, request("/", "Authorization", token, "Authorization", forged), ambiguous, false},
		{"another scheme", source{Bearer: true}, request("/", "Authorization", "Basic k"), "k", false},
		{"a token alone", source{Bearer: true}, request("/", "Authorization", "k"), "k", false},
		{"a token alone, behind a blank", source{Bearer: true}, request("/", "Authorization", " k"), "k", false},
		{"a bearer token behind a blank", source{Bearer: true}, request("/", "Authorization", " Bearer k"), ambiguous, false},
		{"another's bearer token, and a blank", source{Bearer: true}, request("/", "Authorization", "x bearer "), ambiguous, false},
		{"one parameter", source{Bearer: true}, request("/", "Authorization", "Custom a=b"), "a=b", false},
		{"two parameters", source{Bearer: true}, request("/", "Authorization", "Custom a=b, c=d"), "", false},
		{"two parameters, with a token that isn't Rails's", source{Bearer: true}, request("/", "Authorization", "Custom token=k, c=d"), "", false},
		{"two parameters, and no token of Rails's", source{Bearer: true}, request("/", "Authorization", "Token a=b, c=d"), "", false},
		{"a scheme alone", source{Bearer: true}, request("/", "Authorization", "Bearer"), "", false},
		{"a claim", source{Claim: "key"}, request("/", "Authorization", token), "sk_9", true},
		{"a claim that is a number", source{Claim: "n"}, request("/", "Authorization", token), "42", true},
		{"a claim that is a truth value", source{Claim: "admin"}, request("/", "Authorization", token), "true", true},
		{"a claim that is a list", source{Claim: "list"}, request("/", "Authorization", token), "", false},
		{"no such claim", source{Claim: "nope"}, request("/", "Authorization", token), "", false},
		{"a claim of a forged token", source{Claim: "key"}, request("/", "Authorization", forged), "", false},
		{"a claim beside a header", source{Claim: "key", Header: "X-Key"}, request("/", "Authorization", token, "X-Key", "k"), ambiguous, false},
		{"a claim beside a header that agrees", source{Claim: "key", Header: "X-Key"}, request("/", "Authorization", token, "X-Key", "sk_9"), "sk_9", true},
		{"a claim of the bearer token", source{Claim: "key", Bearer: true}, request("/", "Authorization", token), "sk_9", true},
		{"a verified token beside a header", source{Header: "X-Key", Bearer: true}, request("/", "Authorization", token, "X-Key", "k"), "k", false},
		{"a forged token beside a header", source{Header: "X-Key", Bearer: true}, request("/", "Authorization", forged, "X-Key", "k"), ambiguous, false},
		{"a header for want of a claim", source{Claim: "key", Header: "X-Key"}, request("/", "Authorization", forged, "X-Key", "k"), "k", false},
		{"a parameter for want of a header", source{Header: "X-Key", Query: "k"}, request("/?k=q"), "q", false},
		{"a header beside a parameter", source{Header: "X-Key", Query: "k"}, request("/?k=q", "X-Key", "k"), ambiguous, false},
		{"a header beside a parameter that agrees", source{Header: "X-Key", Query: "k"}, request("/?k=q", "X-Key", "q"), "q", false},
	} {
		req := identify(httplimit.Identity{APIKey: c.source, JWT: verifier}, c.request)
		if req.APIKey != c.want || req.KeyVerified != c.verified {
			t.Errorf("%s: got %q, verified %v; want %q, %v", c.name, req.APIKey, req.KeyVerified, c.want, c.verified)
		}
	}

	id := httplimit.Identity{
		User: source{Claim: "sub"}, Org: source{Header: "X-Org"}, Tier: source{Claim: "plan", Header: "X-Tier"}, JWT: verifier,
	}
	req := identify(id, request("/", "Authorization", token, "X-Org", "acme"))
	if req.User != "u-17" || req.Org != "acme" || req.Tier != "pro" || !req.TierVerified {
		t.Errorf("%+v", req)
	}
	if req = identify(id, request("/", "Authorization", forged, "X-Tier", "enterprise")); req.User != "" || req.Tier != "enterprise" || req.TierVerified {
		t.Errorf("a forged token: %+v", req)
	}
	id.TrustUnverified = true
	if req = identify(id, request("/", "X-Tier", "enterprise", "X-API-Key", "k")); !req.TierVerified || !req.KeyVerified {
		t.Errorf("trusted unverified: %+v", req)
	}
	if req = identify(id, request("/")); req.TierVerified || req.KeyVerified {
		t.Errorf("what isn't there was verified: %+v", req)
	}
}

func TestAttributes(t *testing.T) {
	id := httplimit.Identity{JWT: knownTokens{genuine: {"org": "acme"}}}
	r := request("http://Tenant.example.:8080/", "X-Tenant", "a", "X-Blanks", " \ta\u00a0", "X-Twice", "a", "X-Twice", "b", "Authorization", "Bearer "+genuine)
	req := identify(id, r)
	for name, want := range map[string]string{
		"header:X-Tenant": "a", "header:x-tenant": "a", "header:Host": "tenant.example", "header:X-Blanks": "a", "header:nope": "", "header:X-Twice": "",
		"claim:org": "acme", "claim:nope": "", "attr:region": "", "": "", "header": "",
	} {
		if got := req.Attr(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	r.Header.Set("Authorization", "Bearer "+forged)
	if got := identify(id, r); got.Attr("claim:org") != "" {
		t.Error("a claim of a forged token exists")
	}
}

func TestKnownKeys(t *testing.T) {
	id := httplimit.Identity{KnownKeys: known("sk_prod_1")}
	for key, want := range map[string]bool{"sk_prod_1": true, "sk_prod_2": false, "SK_PROD_1": false, "sk_prod_1 ": false, "": false} {
		if got := identify(id, request("/", "X-API-Key", key)).KeyVerified; got != want {
			t.Errorf("%q is known: %v", key, got)
		}
	}
}

// A preflight is exactly what a browser sends. A request that a service could understand as more isn't one.
func TestPreflight(t *testing.T) {
	preflight := []string{"Origin", "https://a.example", "Access-Control-Request-Method", "PUT"}
	with := func(more ...string) []string { return append(slices.Clone(preflight), more...) }
	for _, c := range []struct {
		name, method, target string
		headers              []string
		body                 string
		want                 bool
	}{
		{"a real one", "OPTIONS", "/", preflight, "", true},
		{"for headers", "OPTIONS", "/", with("Access-Control-Request-Headers", "x-api-key,authorization"), "", true},
		{"without an origin", "OPTIONS", "/", preflight[2:], "", false},
		{"without a method", "OPTIONS", "/", preflight[:2], "", false},
		{"with two methods", "OPTIONS", "/", with("Access-Control-Request-Method", "GET"), "", false},
		{"for a method that isn't one", "OPTIONS", "/", []string{"Origin", "https://a.example", "Access-Control-Request-Method", "X"}, "", false},
		{"another method", "POST", "/", preflight, "", false},
		{"in small letters", "options", "/", preflight, "", false},
		{"with a body", "OPTIONS", "/", preflight, "hello", false},
		{"with a key", "OPTIONS", "/", with("X-API-Key", "k"), "", false},
		{"with a key in its query", "OPTIONS", "/?api_key=k", preflight, "", false},
		{"with a user", "OPTIONS", "/", with("X-User", "u"), "", false},
		{"with a token", "OPTIONS", "/", with("Authorization", "Bearer k"), "", false},
		{"with a cookie", "OPTIONS", "/", with("Cookie", "a=b"), "", false},
		{"that is something else to frameworks", "OPTIONS", "/", with("X-HTTP-Method-Override", "POST"), "", false},
		{"that is something else to CGI", "OPTIONS", "/", with("X_HTTP_Method_Override", "POST"), "", false},
	} {
		r := httptest.NewRequest(c.method, c.target, strings.NewReader(c.body))
		for i := 0; i < len(c.headers); i += 2 {
			r.Header.Add(c.headers[i], c.headers[i+1])
		}
		id := httplimit.Identity{APIKey: httplimit.Source{Header: "X-API-Key", Query: "api_key"}, User: httplimit.Source{Header: "X-User"}}
		if got := identify(id, r).Preflight; got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// Preflights are limited by address, and by /64 for IPv6. A request that only looks like a preflight is limited like any other.
func TestPreflightLimit(t *testing.T) {
	synctest.Test(t, testPreflightLimit)
}

func testPreflightLimit(t *testing.T) {
	l := limiter(t, rules(weir.Rule{ID: "all", By: []string{}, Limits: per(1, 366*24*time.Hour)}))
	h := wrap(l, httplimit.Options{}, ok)
	do := func(from, key, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodOptions, "/", strings.NewReader(body))
		r.RemoteAddr = from
		r.Header.Set("Origin", "https://a.example")
		r.Header.Set("Access-Control-Request-Method", "POST")
		if key != "" {
			r.Header.Set("X-API-Key", key)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for i := range 50 {
		if got := do(fmt.Sprintf("[2001:db8::%x]:1", i), "", "").Code; got != 200 {
			t.Fatalf("preflight %d: %d", i, got)
		}
	}
	if w := do("[2001:db8::ffff]:1", "", ""); w.Code != 429 || w.Header().Get("X-RateLimit-Rule") != "preflight" || w.Header().Get("Retry-After") != "1" {
		t.Errorf("the 51st of a /64: %d, %v", w.Code, w.Header())
	}
	if got := do("[2001:db8:0:1::1]:1", "", "").Code; got != 200 {
		t.Errorf("another /64: %d", got)
	}
	time.Sleep(time.Second)
	if got := do("[2001:db8::1]:1", "", "").Code; got != 200 {
		t.Errorf("a second later: %d", got)
	}
	if a, b := do("192.0.2.1:1", "k", "").Code, do("192.0.2.1:1", "", "hello").Code; a != 200 || b != 429 {
		t.Errorf("a limit of one, for what isn't a preflight: %d, then %d", a, b)
	}
}

// tiered has an allow list, a map of keys to tiers, and a quota that depends on them.
func tiered(t *testing.T) *weir.Limiter {
	return limiter(t, weir.Rules{
		Tiers: []weir.Tier{{Name: "free", Limits: per(2, time.Hour)}, {Name: "pro", Limits: per(50, time.Hour)}},
		Keys:  []weir.KeyTier{{Pattern: "sk_prod_*", Tier: "pro"}},
		Rules: []weir.Rule{{ID: "quota"}},
		Allow: []string{"sk_internal_*"},
		Deny:  []string{"sk_revoked_*"},
	})
}

func TestUnverifiedIdentitiesGetNoPrivileges(t *testing.T) {
	identity := httplimit.Identity{
		Tier: httplimit.Source{Claim: "plan", Header: "X-Tier"}, JWT: knownTokens{genuine: {"plan": "pro", "sub": "u"}},
		KnownKeys: known("sk_internal_ours", "sk_prod_ours"),
	}
	for _, c := range []struct {
		name    string
		headers []string
		limit   string // the limit in the headers; "" if the request bypasses all rules
	}{
		{"a forged internal key", []string{"X-API-Key", "sk_internal_x"}, "2"},
		{"a known internal key", []string{"X-API-Key", "sk_internal_ours"}, ""},
		{"a forged key of a tier", []string{"X-API-Key", "sk_prod_x"}, "2"},
		{"a known key of a tier", []string{"X-API-Key", "sk_prod_ours"}, "50"},
		{"a forged tier", []string{"X-API-Key", "k1", "X-Tier", "pro"}, "2"},
		{"the tier of a token", []string{"X-API-Key", "k2", "Authorization", "Bearer " + genuine}, "50"},
		{"the tier of a forged token", []string{"X-API-Key", "k3", "Authorization", "Bearer " + forged}, "2"},
		{"a forged internal key beside a genuine token", []string{"X-API-Key", "sk_internal_y", "Authorization", "Bearer " + genuine}, "50"},
	} {
		srv, client := serve(t, wrap(tiered(t), httplimit.Options{Identity: identity}, ok))
		resp := get(t, client, srv.URL, c.headers...)
		if got := resp.Header.Get("X-RateLimit-Limit"); resp.StatusCode != 200 || got != c.limit {
			t.Errorf("%s: %d with limit %q, want %q", c.name, resp.StatusCode, got, c.limit)
		}
		if c.limit != "2" {
			continue
		}
		get(t, client, srv.URL, c.headers...)
		if got := get(t, client, srv.URL, c.headers...).StatusCode; got != 429 {
			t.Errorf("%s: the third request got %d", c.name, got)
		}
	}
}

// A program's own Identify function runs last, and what it marks as verified is verified.
func TestIdentifyOfOnesOwn(t *testing.T) {
	sessions := map[string]string{"s1": "sk_internal_ours", "s2": "sk_revoked_1"}
	srv, client := serve(t, wrap(tiered(t), httplimit.Options{
		Identity: httplimit.Identity{TrustUnverified: false},
		Identify: func(r *http.Request, req *weir.Request) {
			if c, err := r.Cookie("session"); err == nil {
				req.APIKey, req.KeyVerified = sessions[c.Value], true
			}
			req.Cost = 2
		},
	}, ok))
	for range 3 {
		if resp := get(t, client, srv.URL, "Cookie", "session=s1"); resp.StatusCode != 200 || resp.Header.Get("X-RateLimit-Limit") != "" {
			t.Errorf("a verified internal key: %d", resp.StatusCode)
		}
	}
	if resp := get(t, client, srv.URL, "Cookie", "session=s2"); resp.StatusCode != 403 {
		t.Errorf("a revoked key: %d", resp.StatusCode)
	}
	if resp := get(t, client, srv.URL, "X-API-Key", "k"); resp.StatusCode != 200 || resp.Header.Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("a request that costs two: %d, %v", resp.StatusCode, resp.Header)
	}
}
