package rulefile_test

import (
	"context"
	"fmt"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/rulefile"
)

func ExampleParse() {
	f, err := rulefile.Parse("rules.yaml", []byte(`
rules:
  - id: orders
    match: {endpoint: "POST /v1/orders"}
    limit: 2/minute
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), f.Set, weir.Options{})
	for range 3 {
		d, _ := limiter.Check(context.Background(), &weir.Request{APIKey: "sk_1", Method: "POST", Path: "/v1/orders"})
		fmt.Println(d.Allowed, d.Remaining)
	}
	// Output:
	// true 1
	// true 0
	// false 0
}

// What is wrong is told all at once, with the place and what to write instead.
func ExampleParse_problems() {
	_, err := rulefile.Parse("rules.yaml", []byte(`
rules:
  - id: login
    algorithm: sliding_log
    limit: 0/15m
`))
	fmt.Println(err)
	// Output:
	// rules.yaml:4:16: rules[0] "login": algorithm: must be one of token_bucket, leaky_bucket, fixed_window, sliding_window_log, sliding_window_counter, got "sliding_log"
	//   4 |     algorithm: sliding_log
	//     |                ^ did you mean "sliding_window_log"?
	// rules.yaml:5:12: rules[0] "login": limit: must be at least 1, got 0
	//   5 |     limit: 0/15m
	//     |            ^
}
