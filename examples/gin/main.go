// Command gin is a Gin server that identifies users by signed tokens.
package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/jwt"
	"github.com/weirhq/weir/memstore"
)

func newHandler(ctx context.Context, secret []byte) (http.Handler, error) {
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
		{ID: "search", Match: weir.Match{Endpoint: "/search"}, By: []string{"user"}, Limits: []weir.Limit{weir.PerMinute(3)}},
	}})
	if err != nil {
		return nil, err
	}
	tokens, err := jwt.NewVerifier(ctx, jwt.Options{Secret: secret})
	if err != nil {
		return nil, err
	}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
	limit := httplimit.New(limiter, httplimit.Options{
		Identity: httplimit.Identity{User: httplimit.Source{Claim: "sub"}, JWT: tokens},
	})

	engine := gin.New()
	engine.GET("/search", func(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"found": 0}) })
	// The limiter wraps the whole engine: rules select the routes, and refusals are sent before Gin
	// does any work.
	return limit.Wrap(engine), nil
}

func main() {
	gin.SetMode(gin.ReleaseMode)
	handler, err := newHandler(context.Background(), []byte(os.Getenv("JWT_SECRET")))
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: "localhost:8080", Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.ListenAndServe())
}
