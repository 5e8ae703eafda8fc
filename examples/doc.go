// Package examples holds small servers behind Weir, one for each router that people ask about, one for gRPC, and one for calls to
// AI models; and three regions on one machine. It is a module of its own, so that the routers don't become dependencies of Weir.
//
//	go run ./nethttp    then: for i in $(seq 6); do curl -i -H 'X-API-Key: me' localhost:8080/orders; done
//	go run ./grpc       then: go run ./grpc me
//	regions/run.sh      prints what to try
package examples
