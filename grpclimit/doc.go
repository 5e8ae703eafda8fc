// Package grpclimit puts a [weir.Limiter] in front of a gRPC server.
//
//	limit := grpclimit.New(limiter, grpclimit.Options{})
//	server := grpc.NewServer(grpc.UnaryInterceptor(limit.Unary), grpc.StreamInterceptor(limit.Stream))
//
// A call is limited like an HTTP request in package httplimit, with the same identities, headers and queues. It counts as a
// POST to its full method, so a rule for the endpoint /pkg.Service/Method limits one method, and a rule for /pkg.Service/
// limits a whole service. Its metadata are the headers: the client's key is in x-api-key unless [Options] say otherwise.
//
// A refusal by a limit is RESOURCE_EXHAUSTED, with RetryInfo, QuotaFailure and ErrorInfo as details. A stream is checked once, when
// it begins.
package grpclimit
