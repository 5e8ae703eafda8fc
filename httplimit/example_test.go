package httplimit_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

// Two requests a minute for each API key, and a third.
func Example() {
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "orders", Limits: []weir.Limit{weir.PerMinute(2)}}}})
	if err != nil {
		log.Fatal(err)
	}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
	limit := httplimit.New(limiter, httplimit.Options{})
	handler := limit.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "your orders") }))

	for range 3 {
		r := httptest.NewRequest(http.MethodGet, "/v1/orders", nil)
		r.Header.Set("X-API-Key", "sk_123")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		h := w.Header()
		fmt.Println(w.Code, "remaining:", h.Get("X-RateLimit-Remaining"), "policy:", h.Get("RateLimit-Policy"))
	}
	// Output:
	// 200 remaining: 1 policy: "orders";q=2;w=60
	// 200 remaining: 0 policy: "orders";q=2;w=60
	// 429 remaining: 0 policy: "orders";q=2;w=60
}

// Users come from signed tokens, their tiers as well, and what a client says of itself without a signature grants nothing.
func ExampleIdentity() {
	tokens, err := httplimit.NewVerifier(context.Background(), httplimit.JWT{
		Secret: []byte("a secret that two parties share!"), Issuer: "https://login.example.com",
	})
	if err != nil {
		log.Fatal(err)
	}
	who := httplimit.NewIdentifier(httplimit.Identity{
		User: httplimit.Source{Claim: "sub"}, Tier: httplimit.Source{Claim: "plan"}, JWT: tokens,
	}, nil)

	r := httptest.NewRequest(http.MethodGet, "/v1/orders", nil)
	r.Header.Set("X-API-Key", "sk_internal_forged")
	r.Header.Set("Authorization", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290IiwicGxhbiI6InBybyJ9.")
	var req weir.Request
	who.Identify(r, &req)
	fmt.Printf("key %q, verified: %v; user %q; tier %q\n", req.APIKey, req.KeyVerified, req.User, req.Tier)
	// Output: key "sk_internal_forged", verified: false; user ""; tier ""
}
