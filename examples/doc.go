// Package examples has small servers that use Weir: one for each of several popular routers, one for gRPC, and one for
// calls to AI models. It also has three regions that run on one machine. It is a module of its own, so that the routers
// don't become dependencies of Weir.
//
//	go run ./nethttp    then: for i in $(seq 6); do curl -i -H 'X-API-Key: me' localhost:8080/orders; done
//	go run ./grpc       then: go run ./grpc me
//	regions/run.sh      prints what to try
package examples
