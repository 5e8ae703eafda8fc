// Command ai limits what calls to a model cost: tokens of a key, dollars of a team by the month, and requests of a user in
// flight, by the rules in rules.yaml.
//
//	go run ./ai model 127.0.0.1:9000    a fake of a model's server, for a gateway in front of it
//	go run ./ai                         a server of its own that answers questions, with the limiter inside
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	_ "embed"
	_ "time/tzdata" // months begin in the rules' time zone, whatever this machine knows of it

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/rulefile"
)

//go:embed rules.yaml
var rules []byte

// answers is a server that has a question answered, limited by what the answer takes. Nobody knows that before, so each request
// reserves what it may take at the most, and settles for what it took.
func answers() (http.Handler, error) {
	file, err := rulefile.Parse("rules.yaml", rules)
	if err != nil {
		return nil, err
	}
	limit := httplimit.New(weir.NewLimiter(memstore.New(memstore.Options{}), file.Set, weir.Options{}), httplimit.Options{})

	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		question := question(r)
		words := len(strings.Fields(question))
		fmt.Fprintln(w, strings.Repeat("word ", words))
		httplimit.Settle(r, map[string]counter.Amount{
			"input": counter.Whole(int64(words)), "output": counter.Whole(int64(words)), "tokens": counter.Whole(int64(2 * words)),
		})
	})
	limited := limit.Wrap(answer)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		words := int64(len(strings.Fields(question(r))))
		const mostOutput = 1000
		limited.ServeHTTP(w, httplimit.WithEstimate(r, &httplimit.Estimate{
			Model:   "small-1",
			Amounts: map[string]counter.Amount{"input": counter.Whole(words), "output": counter.Whole(mostOutput), "tokens": counter.Whole(words + mostOutput)},
			Reserve: time.Minute,
		}))
	}), nil
}

// question is what a request asks: ?q=…
func question(r *http.Request) string { return r.URL.Query().Get("q") }

func main() {
	handler, addr := http.Handler(nil), "localhost:8080"
	if len(os.Args) == 3 && os.Args[1] == "model" {
		handler, addr = model(20*time.Millisecond), os.Args[2]
	} else {
		var err error
		if handler, err = answers(); err != nil {
			log.Fatal(err)
		}
	}
	_, _ = io.WriteString(os.Stderr, "serving http://"+addr+"\n")
	server := &http.Server{Addr: addr, Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}
