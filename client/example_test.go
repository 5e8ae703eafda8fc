package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/client"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
)

// An http.Client that paces its requests. Pass it to any code that accepts an http.Client, such as the SDK of the
// service that you call.
func ExampleTransport() {
	service := httptest.NewServer(limited(weir.Limit{Count: 20, Window: time.Second, Burst: 2}))
	defer service.Close()

	calls := http.Client{
		Timeout:   10 * time.Second,
		Transport: &client.Transport{MaxWait: 5 * time.Second},
	}
	for range 5 {
		res, err := calls.Get(service.URL + "/v1/orders")
		if paused, ok := errors.AsType[*client.PausedError](err); ok {
			fmt.Println("not before", paused.Until)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		res.Body.Close()
		fmt.Println(res.StatusCode)
	}
	// Output:
	// 200
	// 200
	// 200
	// 200
	// 200
}

// A service asks a Weir node before it serves a request. While no node responds, it applies limits of its own.
func ExampleClient() {
	node := httptest.NewServer(checkAPI(limiter(weir.Rule{ID: "orders", Limits: []weir.Limit{weir.PerMinute(2)}}))) // weir serve
	defer node.Close()

	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "without-weir", Limits: []weir.Limit{weir.PerMinute(1)}}}})
	if err != nil {
		log.Fatal(err)
	}
	checks, err := client.New(client.Options{
		URL:      node.URL,
		Timeout:  10 * time.Second,
		Fallback: weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{}),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer checks.Close()
	for i := range 5 {
		if i == 3 {
			node.Close()
		}
		d, err := checks.Check(context.Background(), &client.Request{Key: "sk_123", Method: "GET", Path: "/v1/orders/17"})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(d.Status, d.Rule, "degraded:", d.Degraded)
	}
	// Output:
	// 200 orders degraded: false
	// 200 orders degraded: false
	// 429 orders degraded: false
	// 200 without-weir degraded: true
	// 429 without-weir degraded: true
}

// A request whose cost is known only when it ends. The service reserves tokens, holds a slot while the request runs,
// and then settles the actual cost.
func ExampleClient_Hold() {
	checks, err := client.New(client.Options{URL: "http://127.0.0.1:8080"}) // weir serve
	if err != nil {
		log.Fatal(err)
	}
	defer checks.Close()
	ctx := context.Background()

	chat := func() {
		d, err := checks.Check(ctx, &client.Request{Key: "sk_123", Amounts: map[string]counter.Amount{"tokens": counter.Whole(1500)}, Reserve: time.Minute})
		if err != nil {
			log.Fatal(err)
		}
		if !d.Allowed {
			fmt.Println("refused by", d.Rule)
			return
		}
		slot := checks.Hold(&d)
		defer func() { _ = slot.Release() }() // a slot that isn't released expires
		fmt.Println(d.Limits[1].Left, "tokens left while it runs")
		used := weir.Outcome{Amounts: map[string]counter.Amount{"tokens": counter.Whole(1900)}}
		if _, err := checks.Settle(ctx, d.Receipt, used); err != nil {
			log.Fatal(err)
		}
	}
	// The limit is 2,000 tokens per hour. While the first request runs, 500 are left; the second request is refused.
	chat()
	chat()
}
