package jwt_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/jwt"
)

// Users and their tiers come from signed tokens. What a client claims without a signature grants nothing.
func Example() {
	tokens, err := jwt.NewVerifier(context.Background(), jwt.Options{
		Secret: []byte("a secret that two parties share!"), Issuer: "https://login.example.com",
	})
	if err != nil {
		log.Fatal(err)
	}
	who := httplimit.NewIdentifier(httplimit.Identity{
		User: httplimit.Source{Claim: "sub"}, Tier: httplimit.Source{Claim: "plan"}, JWT: tokens,
	}, nil)

	r := httptest.NewRequest(http.MethodGet, "/v1/orders", nil)
	r.Header.Set("X-API-Key", "sk_internal_forged")
	r.Header.Set("Authorization", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290IiwicGxhbiI6InBybyJ9.")
	var req weir.Request
	if err := who.Identify(r, &req); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("key %q, verified: %v; user %q; tier %q\n", req.APIKey, req.KeyVerified, req.User, req.Tier)
	fmt.Println(req.Rejected)
	// Output:
	// key "sk_internal_forged", verified: false; user ""; tier ""
	// the token's signature or algorithm is wrong
}
