// Command grpc is a gRPC server that greets each API key five times per minute, and a client to try it with.
//
//	go run ./grpc &
//	go run ./grpc me
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/examples/helloworld/helloworld"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/grpclimit"
	"github.com/weirhq/weir/memstore"
)

type greeter struct {
	pb.UnimplementedGreeterServer
}

func (greeter) SayHello(_ context.Context, req *pb.HelloRequest) (*pb.HelloReply, error) {
	return &pb.HelloReply{Message: "Hello, " + req.GetName()}, nil
}

func newServer() (*grpc.Server, error) {
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{
		{ID: "greetings", Match: weir.Match{Endpoint: pb.Greeter_SayHello_FullMethodName}, Limits: []weir.Limit{weir.PerMinute(5)}},
		{ID: "address", By: []string{"ip"}, Limits: []weir.Limit{weir.PerSecond(100)}},
	}})
	if err != nil {
		return nil, err
	}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{})
	limit := grpclimit.New(limiter, grpclimit.Options{})

	server := grpc.NewServer(grpc.UnaryInterceptor(limit.Unary), grpc.StreamInterceptor(limit.Stream))
	pb.RegisterGreeterServer(server, greeter{})
	healthpb.RegisterHealthServer(server, health.NewServer()) // health checks aren't limited
	return server, nil
}

// greet calls the server six times and prints its answers.
func greet(out io.Writer, addr, key string) error {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "x-api-key", key)
	for range 6 {
		var header metadata.MD
		reply, err := pb.NewGreeterClient(conn).SayHello(ctx, &pb.HelloRequest{Name: "you"}, grpc.Header(&header), grpc.WaitForReady(true))
		if err == nil {
			fmt.Fprintln(out, reply.GetMessage(), "remaining:", header.Get("x-ratelimit-remaining"))
			continue
		}
		s := status.Convert(err)
		fmt.Fprintln(out, s.Code(), s.Message())
		for _, detail := range s.Details() {
			if retry, ok := detail.(*errdetails.RetryInfo); ok {
				fmt.Fprintln(out, "retry in", retry.GetRetryDelay().AsDuration().Round(time.Second))
			}
		}
	}
	return nil
}

func main() {
	const addr = "localhost:50051"
	if len(os.Args) > 1 {
		if err := greet(os.Stdout, addr, os.Args[1]); err != nil {
			log.Fatal(err)
		}
		return
	}
	server, err := newServer()
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.Serve(listener))
}
