package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/grpclimit"
	"github.com/weirhq/weir/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	unary  = "/grpc.testing.TestService/UnaryCall"
	empty  = "/grpc.testing.TestService/EmptyCall"
	duplex = "/grpc.testing.TestService/FullDuplexCall"
)

// per allows n calls per year, so that no window ends during a test.
func per(n int64) []weir.Limit { return []weir.Limit{{Count: n, Window: 366 * 24 * time.Hour}} }

func compile(t testing.TB, rules weir.Rules) *weir.RuleSet {
	t.Helper()
	set, err := weir.Compile(rules)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// service returns the answer that the test sets.
type service struct {
	testgrpc.UnimplementedTestServiceServer
	answer func(context.Context) error
	served atomic.Int64
}

func (s *service) called(ctx context.Context) error {
	s.served.Add(1)
	if s.answer == nil {
		return nil
	}
	return s.answer(ctx)
}

func (s *service) EmptyCall(ctx context.Context, _ *testgrpc.Empty) (*testgrpc.Empty, error) {
	return &testgrpc.Empty{}, s.called(ctx)
}

func (s *service) UnaryCall(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return &testgrpc.SimpleResponse{}, s.called(ctx)
}

func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[testgrpc.StreamingOutputCallRequest, testgrpc.StreamingOutputCallResponse]) error {
	if err := s.called(stream.Context()); err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.Send(&testgrpc.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// world is a server with a limiter, and a client connected to it.
type world struct {
	testgrpc.TestServiceClient
	conn    *grpc.ClientConn
	service *service
	limiter *weir.Limiter
	addr    string
}

func newWorld(t testing.TB, rules *weir.RuleSet, opts grpclimit.Options, more ...any) *world {
	t.Helper()
	limits := weir.Options{}
	server := []grpc.ServerOption{}
	client := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	for _, o := range more {
		switch o := o.(type) {
		case weir.Options:
			limits = o
		case grpc.ServerOption:
			server = append(server, o)
		case grpc.DialOption:
			client = append(client, o)
		}
	}
	w := &world{service: &service{}, limiter: weir.NewLimiter(memstore.New(memstore.Options{}), rules, limits)}
	limit := grpclimit.New(w.limiter, opts)
	s := grpc.NewServer(append(server, grpc.ChainUnaryInterceptor(limit.Unary), grpc.ChainStreamInterceptor(limit.Stream))...)
	testgrpc.RegisterTestServiceServer(s, w.service)
	healthpb.RegisterHealthServer(s, health.NewServer())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	w.addr = l.Addr().String()
	w.dial(t, client...)
	return w
}

func (w *world) dial(t testing.TB, opts ...grpc.DialOption) {
	t.Helper()
	conn, err := grpc.NewClient(w.addr, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	w.conn, w.TestServiceClient = conn, testgrpc.NewTestServiceClient(conn)
}

// called is the result of a call.
type called struct {
	*status.Status
	header, trailer metadata.MD
}

// call makes a call with metadata, given as pairs of names and values.
func (w *world) call(t testing.TB, kv ...string) called {
	t.Helper()
	return w.callWith(metadata.AppendToOutgoingContext(t.Context(), kv...))
}

func (w *world) callWith(ctx context.Context) called {
	var c called
	_, err := w.UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Header(&c.header), grpc.Trailer(&c.trailer))
	c.Status = status.Convert(err)
	return c
}

// detail returns the status detail of type T, or nil.
func detail[T any](c called) (found T) {
	for _, d := range c.Details() {
		if d, ok := d.(T); ok {
			return d
		}
	}
	return found
}

func (c called) is(want codes.Code) bool { return c.Code() == want }
