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
		log.Fatal(err) // the error has line, column, and a suggestion
	}
	defer n.Close()
	keys := httplimit.KnownKeys{sha256.Sum256([]byte("sk_prod_1")): {}} // unknown keys get no tier
	limit := httplimit.New(n.Limiter, httplimit.Options{Identity: httplimit.Identity{KnownKeys: keys}})
	err = http.ListenAndServe("127.0.0.1:8000", limit.Wrap(http.NotFoundHandler()))
	log.Print(err)
}
