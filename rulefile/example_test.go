package rulefile_test

import (
	"context"
	"fmt"
	"time"

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

// Parse reports all problems at once, each with its position and a suggestion.
func ExampleParse_problems() {
	_, err := rulefile.Parse("rules.yaml", []byte(`
rules:
  - id: login
    algorithm: sliding_log
    limit: 0/15m
`))
	fmt.Println(err)
	// Output:
	// rules.yaml:4:16: rules[0] "login": algorithm: must be one of token_bucket, leaky_bucket, fixed_window, sliding_window_log, sliding_window_counter, concurrency, got "sliding_log"
	//   4 |     algorithm: sliding_log
	//     |                ^ did you mean "sliding_window_log"?
	// rules.yaml:5:12: rules[0] "login": limit: must be at least 1, got 0
	//   5 |     limit: 0/15m
	//     |            ^
}

// An edit changes only its own field, and leaves everything else as people wrote it.
func ExampleSetOverride() {
	text, err := rulefile.SetOverride([]byte(`rules:
  - id: search       # expensive
    limit: 30/minute
  # more to come
`), "search", "sk_prod_vip", rulefile.Numbers{Limit: "300", Expires: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(string(text))
	// Output:
	// rules:
	//   - id: search       # expensive
	//     limit: 30/minute
	//     override:
	//       sk_prod_vip: {limit: 300/minute, expires: 2026-01-31T12:00:00Z}
	//   # more to come
}

// Compare warns about changes that are probably mistakes, before they are made.
func ExampleCompare() {
	before, _ := rulefile.Parse("before.yaml", []byte("rules: [{id: api, limit: 100/minute}]"))
	after, _ := rulefile.Parse("after.yaml", []byte("rules: [{id: api, limit: 100/hour}]"))
	for _, p := range rulefile.Compare(before, after) {
		fmt.Println(p.Long())
	}
	// Output:
	// after.yaml:1:26: rules[0] "api": limit: the limit is cut by more than half, from 100/minute to 100/hour
	//   1 | rules: [{id: api, limit: 100/hour}]
	//     |                          ^ did you mean "100/minute"?
}
