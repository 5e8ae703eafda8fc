// Package jwt verifies JSON Web Tokens, so that rules can count by users and grant tiers that a client can't forge.
//
//	tokens, err := jwt.NewVerifier(ctx, jwt.Options{JWKSURL: "https://login.example.com/keys.json", Audience: "orders"})
//	…
//	limit := httplimit.New(limiter, httplimit.Options{Identity: httplimit.Identity{
//		User: httplimit.Source{Claim: "sub"}, JWT: tokens,
//	}})
//
// Tokens are verified with a shared secret, a public key, or the keys that an identity provider publishes. A [Verifier] is as lenient
// as common services, which must not accept a user whom the limiter doesn't see: a token is good for five minutes more than it says,
// and its signature may be spelled in any form that libraries accept.
package jwt
