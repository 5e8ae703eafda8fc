// Package checkapi serves decisions over HTTP with JSON, for gateways and
// services that aren't written in Go or don't want the limiter inside:
//
//	POST /v1/check    decides one request by the rules
//	POST /v1/checks   decides up to 1,000 of them, in one call
//	POST /v1/take     decides by a limit that the call itself brings, without any rule
//	POST /v1/settle   books what a request really took of what its check reserved, once, for its receipt
//	POST /v1/release  frees the slots that a check took
//	POST /v1/renew    keeps them, for a request that is still in flight
//	POST /v1/refund   gives back what a check or a take took, once, for its receipt
//
// The caller is trusted: what it says of a request counts as verified, and so
// this belongs where only one's own services reach it, or behind a token. Web pages of
// other sites, whose requests a browser sends from within, are refused. The caller is still not believed
// to be well behaved. Bodies are bounded before they are read, and
// what isn't exactly understood is refused with a reason: an unknown field, a
// field given twice, bytes that aren't UTF-8. Each of these would otherwise be a
// way for two parties to read one body differently, or for two keys to share a
// counter. An answer in the 400s has charged nothing, and no answer repeats the
// value of a field, since that may be a key.
//
// Slow clients are the business of the [net/http.Server] around it: give it a
// ReadTimeout.
package checkapi
