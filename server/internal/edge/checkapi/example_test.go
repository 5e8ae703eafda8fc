package checkapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

func ExampleNew() {
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "orders", Limits: []weir.Limit{weir.PerMinute(100)}}}})
	if err != nil {
		panic(err)
	}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
	api := checkapi.New(limiter, nil, checkapi.Options{})

	w := httptest.NewRecorder()
	api.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/check", strings.NewReader(`{"key": "sk_prod_abc"}`)))
	fmt.Println(w.Code, w.Header().Get("X-RateLimit-Remaining"))
	// Output: 200 99
}
