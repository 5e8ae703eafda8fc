package weir_test

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
)

// The whole of it: rules, a limiter, a check.
func Example() {
	rules, _ := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "api", Limits: []weir.Limit{weir.PerMinute(2)}}}})
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
	for range 3 {
		d, _ := limiter.Check(context.Background(), &weir.Request{APIKey: "sk_123"})
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter.Round(time.Second))
	}
	// Output:
	// true 1 0s
	// true 0 0s
	// false 0 30s
}

// One request is held against many limits at once: all or nothing, and the most restrictive speaks.
func ExampleLimiter_Check() {
	rules, _ := weir.Compile(weir.Rules{Rules: []weir.Rule{
		{ID: "per-address", By: []string{"ip"}, Limits: []weir.Limit{weir.PerSecond(20)}},
		{ID: "per-key", Limits: []weir.Limit{weir.PerMinute(100)}},
		{ID: "search", Match: weir.Match{Endpoint: "GET /v1/search"}, Limits: []weir.Limit{weir.PerMinute(3)}},
	}})
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
	d, _ := limiter.Check(context.Background(), &weir.Request{
		APIKey: "sk_123", IP: netip.MustParseAddr("203.0.113.7"), Method: "GET", Path: "/v1/search",
	})
	fmt.Println(d.Allowed, "by", d.Rule)
	for _, l := range d.Limits() {
		fmt.Println(l.Policy.Name, l.Policy.Limit, l.Remaining)
	}
	// Output:
	// true by search
	// per-address 20/second 19
	// per-key 100/minute 99
	// search 3/minute 2
}

// A job that turns out not to run gives back what it took, once, on any node that has its receipt.
func ExampleLimiter_Finish_receipt() {
	rules, _ := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "tokens", By: []string{"org"}, Limits: []weir.Limit{weir.PerHour(10_000)}}}})
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
	ctx := context.Background()
	d, _ := limiter.Check(ctx, &weir.Request{Org: "acme", Cost: 4000, Receipt: true})
	fmt.Println(d.Remaining)
	for range 2 {
		fmt.Println(limiter.Finish(ctx, &weir.Decision{Receipt: d.Receipt}, weir.Outcome{Abandoned: true}))
	}
	// Output:
	// 6000
	// <nil>
	// weir: already given back
}

// A failed login counts, a successful one doesn't.
func ExampleLimiter_Finish() {
	rules, _ := weir.Compile(weir.Rules{Rules: []weir.Rule{{
		ID: "login", By: []string{"user"}, Statuses: []int{401}, Algorithm: weir.SlidingLog,
		Limits: []weir.Limit{{Count: 5, Window: 15 * time.Minute}},
	}}})
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
	ctx := context.Background()
	for _, status := range []int{200, 200, 401} {
		d, _ := limiter.Check(ctx, &weir.Request{User: "ada"})
		_ = limiter.Finish(ctx, &d, weir.Outcome{Status: status})
	}
	d, _ := limiter.Check(ctx, &weir.Request{User: "ada", Peek: true})
	fmt.Println(d.Remaining, "guesses left")
	// Output:
	// 4 guesses left
}

// Explain says which rules apply to a request, and why the others don't.
func ExampleRuleSet_Explain() {
	rules, _ := weir.Compile(weir.Rules{
		Tiers: []weir.Tier{{Name: "free", Limits: []weir.Limit{weir.PerMinute(100)}}, {Name: "pro", Limits: []weir.Limit{weir.PerMinute(1000)}}},
		Keys:  []weir.KeyTier{{Pattern: "sk_prod_*", Tier: "pro"}},
		Rules: []weir.Rule{{ID: "quota"}, {ID: "login", Match: weir.Match{Endpoint: "POST /login"}, Limits: []weir.Limit{weir.PerHour(5)}}},
	})
	x := rules.Explain(&weir.Request{APIKey: "sk_prod_1", Method: "GET", Path: "/v1/orders"})
	fmt.Println("tier:", x.Tier)
	fmt.Println("ignored:", x.Ignored[0])
	for _, r := range x.Rules {
		fmt.Println(r.ID, r.Applies, r.Why)
	}
	// Output:
	// tier: free
	// ignored: tier pro of keys entry sk_prod_*: the key is not verified
	// quota true it has no conditions
	// login false the path doesn't match endpoint POST /login
}
