// Package grpclimit puts a [weir.Limiter] in front of a gRPC server.
//
//	limit := grpclimit.New(limiter, grpclimit.Options{})
//	server := grpc.NewServer(grpc.UnaryInterceptor(limit.Unary), grpc.StreamInterceptor(limit.Stream))
//
// A call is limited as an HTTP request is by package httplimit, whose identities, headers and queues it shares. It is a POST of
// its full method, so a rule for the endpoint /pkg.Service/Method limits one method, and one for /pkg.Service/ all of a
// service. Metadata are its headers: the client's key is in x-api-key unless [Options] say otherwise.
//
// A refusal by a limit is RESOURCE_EXHAUSTED, with RetryInfo, QuotaFailure and ErrorInfo as details. A stream is checked once, when
// it begins.
package grpclimit
