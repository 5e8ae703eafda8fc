// Command chi is a chi server that reads its rules from a file: five failed logins per quarter of
// an hour, and a quota for each tier.
package main

import (
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/rulefile"
)

func newHandler(rules string) (http.Handler, error) {
	file, err := rulefile.Load(rules)
	if err != nil {
		return nil, err // the error has line, column, and a suggestion
	}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), file.Set, weir.Options{})
	limit := httplimit.New(limiter, httplimit.Options{
		OnError: func(r *http.Request, err error) { log.Printf("%s %s: %v", r.Method, r.URL.Path, err) },
	})

	r := chi.NewRouter()
	r.Use(limit.Wrap)
	r.Post("/login", func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "correct horse battery staple" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		fmt.Fprintln(w, "welcome")
	})
	r.Get("/orders/{id}", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "order", chi.URLParam(r, "id")) })
	return r, nil
}

func main() {
	handler, err := newHandler("rules.yaml")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: "localhost:8080", Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}
