// Package httplimit limits the requests to a net/http handler. 100 a minute for each user, given a
// function that returns the user of a request, takes one line:
//
//	http.ListenAndServe(":8080", httplimit.PerUser(weir.PerMinute(100), user).Wrap(handler))
//
// With rules, put a [weir.Limiter] in front of the handler:
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
