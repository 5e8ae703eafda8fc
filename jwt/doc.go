// Package jwt verifies JSON Web Tokens, so that rules can count by users and grant tiers that a client can't forge.
//
//	tokens, err := jwt.NewVerifier(ctx, jwt.Options{JWKSURL: "https://login.example.com/keys.json", Audience: "orders"})
//	…
//	limit := httplimit.New(limiter, httplimit.Options{Identity: httplimit.Identity{
//		User: httplimit.Source{Claim: "sub"}, JWT: tokens,
//	}})
//
// Tokens are verified with a shared secret, a public key, or the keys that an identity provider publishes. A [Verifier] is as
// lenient as common services are: it accepts a token for five minutes before and after its stated times, and a signature in any
// spelling that libraries accept. Otherwise, a service could accept a user whom the limiter doesn't see.
package jwt
