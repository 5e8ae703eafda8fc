package node_test

import (
	"crypto/sha256"
	"log"
	"net/http"

	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/node"
)

func Example() {
	n, err := node.Open(node.Options{Store: "redis://127.0.0.1:6379", Rules: "rules.yaml"})
	if err != nil {
		log.Fatal(err) // with line, column, and what to write instead
	}
	defer n.Close()
	keys := httplimit.KnownKeys{sha256.Sum256([]byte("sk_prod_1")): {}} // what isn't proven gets no tier
	limit := httplimit.New(n.Limiter, httplimit.Options{Identity: httplimit.Identity{KnownKeys: keys}})
	err = http.ListenAndServe("127.0.0.1:8000", limit.Wrap(http.NotFoundHandler()))
	log.Print(err)
}
