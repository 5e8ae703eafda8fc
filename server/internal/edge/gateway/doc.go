// Package gateway is a reverse proxy with the limiter in front, for those who
// have no gateway of their own.
//
//	g, err := gateway.New(gateway.Options{Upstream: upstream, Limit: httplimit.New(limiter, httplimit.Options{})})
//	…
//	err = gateway.NewServer(g).Serve(listener)
//
// What the limiter refuses never reaches the upstream. What it admits is
// forwarded as it came: the path byte for byte, the query too, even where it is
// malformed, and bodies as they arrive, in both directions. The gateway changes
// what a proxy must (headers of one connection), what would let a stranger
// lie (X-Forwarded-*), and the rate-limit headers of the answer, which are Weir's.
//
// A query is forwarded untouched because others may have signed it. The limiter
// refuses those in which an upstream could read another API key than it did.
package gateway
