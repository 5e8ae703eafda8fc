package httplimit_test

import (
	"crypto/sha256"
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

// 100 requests a minute for each user with a session, and for each address without one.
func ExamplePerUser() {
	user := func(r *http.Request) string {
		if c, err := r.Cookie("session"); err == nil {
			return c.Value // a service would look up whose session it is
		}
		return ""
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	handler := httplimit.PerUser(weir.PerMinute(100), user).Wrap(hello)

	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.AddCookie(&http.Cookie{Name: "session", Value: "ada"})
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	fmt.Println(w.Code, w.Header().Get("RateLimit-Policy"), w.Header().Get("X-RateLimit-Remaining"))
	// Output: 200 "limit";q=100;w=60 99
}

// A key that the service has issued may have privileges, such as a tier. A key that looks like one grants nothing.
func ExampleIdentity() {
	issued := httplimit.KnownKeys{sha256.Sum256([]byte("sk_prod_123")): {}}
	who := httplimit.NewIdentifier(httplimit.Identity{KnownKeys: issued}, nil)

	for _, key := range []string{"sk_prod_123", "sk_prod_forged"} {
		r := httptest.NewRequest(http.MethodGet, "/v1/orders", nil)
		r.Header.Set("X-API-Key", key)
		var req weir.Request
		if err := who.Identify(r, &req); err != nil {
			log.Fatal(err)
		}
		fmt.Println(req.APIKey, "verified:", req.KeyVerified)
	}
	// Output:
	// sk_prod_123 verified: true
	// sk_prod_forged verified: false
}
