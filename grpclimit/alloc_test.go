//go:build !race

// The race detector makes allocations of its own, so these tests run without it.

package grpclimit_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/grpclimit"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/memstore"
)

// incoming returns the context of a call as a server receives it.
func incoming(ctx context.Context) context.Context {
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7), Port: 1234}})
	ctx = grpc.NewContextWithServerTransportStream(ctx, sink{})
	return metadata.NewIncomingContext(ctx, metadata.Pairs(":authority", "shop.example", "content-type", "application/grpc", "user-agent", "grpc-go", "x-api-key", "sk_prod_1"))
}

// sink is a stream that drops everything, so that only the interceptor's allocations are counted.
type sink struct{}

func (sink) Method() string               { return unary }
func (sink) SetHeader(metadata.MD) error  { return nil }
func (sink) SendHeader(metadata.MD) error { return nil }
func (sink) SetTrailer(metadata.MD) error { return nil }

func interceptor(t testing.TB, answers httplimit.Answers) func(context.Context) error {
	set := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: per(1e9)}}})
	limit := grpclimit.New(weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{}), grpclimit.Options{Answers: answers})
	info, message := &grpc.UnaryServerInfo{FullMethod: unary}, &testgrpc.SimpleRequest{}
	handle := func(context.Context, any) (any, error) { return nil, nil }
	return func(ctx context.Context) error {
		_, err := limit.Unary(ctx, message, info, handle)
		return err
	}
}

// TestAllocsPerCall limits the allocations of a call: for the HTTP request that stands for it and, if clients are told
// their limits, for the metadata.
func TestAllocsPerCall(t *testing.T) {
	for name, c := range map[string]struct {
		answers httplimit.Answers
		most    float64
	}{
		"silent":        {httplimit.Answers{Dialects: []httplimit.Dialect{}}, 4},
		"both dialects": {httplimit.Answers{}, 9},
	} {
		call, ctx := interceptor(t, c.answers), incoming(t.Context())
		got := testing.AllocsPerRun(1000, func() {
			if err := call(ctx); err != nil {
				t.Error(err)
			}
		})
		if t.Logf("%s: %v allocations", name, got); got > c.most {
			t.Errorf("%s: %v allocations, want at most %v", name, got, c.most)
		}
	}
}

// BenchmarkUnary measures the interceptor alone, and a call with and without it.
func BenchmarkUnary(b *testing.B) {
	b.Run("interceptor", func(b *testing.B) {
		call, ctx := interceptor(b, httplimit.Answers{}), incoming(b.Context())
		b.ReportAllocs()
		for b.Loop() {
			if err := call(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, opts := range map[string]grpclimit.Options{"call=limited": {}, "call=free": {Skip: func(string) bool { return true }}} {
		b.Run(name, func(b *testing.B) {
			w := newWorld(b, compile(b, weir.Rules{Rules: []weir.Rule{{ID: "a", Limits: per(1e9)}}}), opts)
			b.ReportAllocs()
			for b.Loop() {
				w.call(b, "x-api-key", "k")
			}
		})
	}
}
