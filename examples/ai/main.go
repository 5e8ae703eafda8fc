// Command ai limits the cost of calls to a model by the rules in rules.yaml: tokens per key, dollars per team and
// month, and requests in flight per user.
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
	_ "time/tzdata" // the time zones of the rules, for machines without time zone data

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/rulefile"
)

//go:embed rules.yaml
var rules []byte

// answers returns a server that answers questions and limits their cost. The cost is known only when the answer is
// complete, so each request reserves the most that it may cost, and then settles what it did cost.
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

// question returns the question in a request: ?q=…
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
