// Command nethttp is a net/http server that allows five orders per minute for each API key, and ten
// requests per second for each IP address.
package main

import (
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

func newHandler() (http.Handler, error) {
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
		{ID: "orders", Match: weir.Match{Endpoint: "/orders"}, Limits: []weir.Limit{weir.PerMinute(5)}},
		{ID: "address", By: []string{"ip"}, Limits: []weir.Limit{weir.PerSecond(10)}},
	}})
	if err != nil {
		return nil, err
	}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
	limit := httplimit.New(limiter, httplimit.Options{})

	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "your orders") })
	return limit.Wrap(mux), nil
}

func main() {
	handler, err := newHandler()
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: "localhost:8080", Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}
