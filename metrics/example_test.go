package metrics_test

import (
	"context"
	"fmt"
	"log"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
)

// A program that serves its metrics with promhttp.Handler only has to pass prometheus.DefaultRegisterer.
func Example() {
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "api", Limits: []weir.Limit{weir.PerMinute(2)}}}})
	if err != nil {
		log.Fatal(err)
	}
	store := memstore.New(memstore.Options{})

	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	limiter := weir.NewLimiter(store, rules, weir.Options{Observe: m.Observe})
	m.Watch(metrics.Sources{Limiter: limiter, Memory: store}) // optional: adds the rules' version and the store's memory

	for range 3 {
		if _, err := limiter.Check(context.Background(), &weir.Request{APIKey: "sk_1"}); err != nil {
			log.Print(err)
		}
	}

	families, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "weir_decisions_total" {
			continue
		}
		for _, m := range f.Metric {
			fmt.Println(m.Label[1].GetValue(), m.Counter.GetValue())
		}
	}
	// Output:
	// allowed 2
	// refused 1
}
