// Package httplimit puts a [weir.Limiter] in front of a net/http handler.
//
//	limit := httplimit.New(limiter, httplimit.Options{})
//	http.ListenAndServe(":8080", limit.Wrap(handler))
//
// The middleware identifies the client (by a header, a query parameter, a signed token, your own
// code, or the address behind proxies that you trust), asks the limiter, waits while a queue delays
// the request, sets the rate-limit headers, answers refusals, and reports the answer's status to
// rules that count by it.
//
// Routers take Wrap like any other middleware, for example r.Use(limit.Wrap) in chi. The handler's
// ResponseWriter keeps its abilities: flushing, hijacking, pushing, sending files and setting
// deadlines.
package httplimit
