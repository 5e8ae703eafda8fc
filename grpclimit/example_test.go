package grpclimit_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/grpclimit"
	"github.com/weirhq/weir/memstore"
)

// A limit of 2 calls per hour for each method and key. The third call is refused.
func Example() {
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{
		ID: "calls", Match: weir.Match{Endpoint: "/grpc.testing.TestService/UnaryCall"},
		Limits: []weir.Limit{weir.PerHour(2)},
	}}})
	if err != nil {
		log.Fatal(err)
	}
	limit := grpclimit.New(weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{}), grpclimit.Options{})
	server := grpc.NewServer(grpc.UnaryInterceptor(limit.Unary), grpc.StreamInterceptor(limit.Stream))
	defer server.Stop()
	testgrpc.RegisterTestServiceServer(server, &service{}) // your service
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(listener)

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-api-key", "sk_123")
	for range 3 {
		_, err := testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, &testgrpc.SimpleRequest{})
		s := status.Convert(err)
		fmt.Printf("%s: %q\n", s.Code(), s.Message())
		for _, detail := range s.Details() {
			if quota, ok := detail.(*errdetails.QuotaFailure); ok {
				fmt.Println("violated:", quota.Violations[0].QuotaId)
			}
		}
	}
	// Output:
	// OK: ""
	// OK: ""
	// ResourceExhausted: "Rate limit of 2 requests per hour exceeded for /grpc.testing.TestService/UnaryCall"
	// violated: calls
}
