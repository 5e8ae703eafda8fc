// Package httplimit puts a [weir.Limiter] in front of a net/http handler.
//
//	limit := httplimit.New(limiter, httplimit.Options{})
//	http.ListenAndServe(":8080", limit.Wrap(handler))
//
// It finds out the client's identity (a header, a query parameter, a signed token, code of your
// own, or the client's address behind proxies you trust), asks the limiter, waits out the delay of
// a queue for as long as the client stays, sets the rate-limit headers, answers refusals, and tells
// rules that count by the answer's status which it was.
//
// A router takes Wrap as it takes any middleware: r.Use(limit.Wrap) with chi.
// What a handler can do with its ResponseWriter (flush, hijack, push, send files,
// set deadlines) it can do behind the limiter, too.
package httplimit
