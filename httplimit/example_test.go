package httplimit_test

import (
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
