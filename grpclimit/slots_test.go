package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/grpclimit"
	"github.com/weirhq/weir/memstore"
)

// slots returns a rule that allows n calls in flight, for all clients together.
func slots(n int64) weir.Rule {
	return weir.Rule{ID: "slots", By: []string{}, Algorithm: weir.Concurrency, Limits: []weir.Limit{{Count: n}}}
}

// left returns how much is left of a rule's limit.
func left(t testing.TB, l *weir.Limiter, rule string) int64 {
	t.Helper()
	d, err := l.Check(t.Context(), &weir.Request{Peek: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range d.Limits() {
		if s.Policy.Rule == rule {
			return s.Remaining
		}
	}
	t.Fatalf("no limit of %s applies", rule)
	return 0
}

// around returns interceptors that send on done whenever a call has ended, and that turn a panic into an error.
func around() (opts []any, done chan struct{}) {
	done = make(chan struct{}, 2000)
	after := func(err *error) {
		if recover() != nil {
			*err = status.Error(codes.Internal, "panic")
		}
		done <- struct{}{}
	}
	return []any{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (_ any, err error) {
			defer after(&err)
			return handle(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
			defer after(&err)
			return handle(server, stream)
		}),
	}, done
}

// The slot of a call becomes free when the call ends, however it ends, and not before.
func TestSlotsEndWithTheirCalls(t *testing.T) {
	gone := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		answer func(context.Context) error
		leaves bool
		code   codes.Code
		counts bool // a rule that counts UNAUTHENTICATED counts the call
	}{
		"with an answer":   {func(context.Context) error { return nil }, false, codes.OK, false},
		"unauthenticated":  {func(context.Context) error { return status.Error(codes.Unauthenticated, "who?") }, false, codes.Unauthenticated, true},
		"with an error":    {func(context.Context) error { return errors.New("no") }, false, codes.Unknown, false},
		"in a panic":       {func(context.Context) error { panic("boom") }, false, codes.Internal, true},
		"by cancellation":  {gone, true, codes.Canceled, true},
		"in spite of that": {func(ctx context.Context) error { <-ctx.Done(); return nil }, true, codes.Canceled, true},
	} {
		for _, streams := range []bool{false, true} {
			more, done := around()
			guesses := weir.Rule{ID: "guesses", By: []string{}, Algorithm: weir.FixedWindow, Limits: per(10), Statuses: []int{401}}
			w := newWorld(t, compile(t, weir.Rules{Rules: []weir.Rule{slots(1), guesses}}), grpclimit.Options{}, more...)
			inside, goOn := make(chan struct{}), make(chan struct{})
			w.service.answer = func(ctx context.Context) error {
				close(inside)
				<-goOn
				return c.answer(ctx)
			}
			call := func(ctx context.Context) codes.Code {
				if !streams {
					return w.callWith(ctx).Code()
				}
				s, err := w.FullDuplexCall(ctx)
				if err != nil {
					return status.Code(err)
				}
				_ = s.CloseSend()
				if _, err = s.Recv(); errors.Is(err, io.EOF) {
					err = nil
				}
				return status.Code(err)
			}
			ctx, leave := context.WithCancel(t.Context())
			code := make(chan codes.Code, 1)
			go func() { code <- call(ctx) }()
			<-inside
			if got := call(t.Context()); got != codes.ResourceExhausted {
				t.Errorf("%s, stream %t: a second call got %s", name, streams, got)
			}
			<-done
			if c.leaves {
				leave()
			}
			close(goOn)
			if got := <-code; got != c.code {
				t.Errorf("%s, stream %t: %s", name, streams, got)
			}
			<-done
			if s, g := left(t, w.limiter, "slots"), left(t, w.limiter, "guesses"); s != 1 || (g == 9) != c.counts {
				t.Errorf("%s, stream %t: %d slots and %d guesses are left", name, streams, s, g)
			}
			leave()
		}
	}
}

// A stream keeps its slot until it ends, and there are never more calls in flight than slots.
func TestSlotsBoundWhatIsInFlight(t *testing.T) {
	w := newWorld(t, compile(t, weir.Rules{Rules: []weir.Rule{slots(7)}}), grpclimit.Options{})
	var in, highest atomic.Int64
	w.service.answer = func(context.Context) error {
		n := in.Add(1)
		defer in.Add(-1)
		for old := highest.Load(); n > old && !highest.CompareAndSwap(old, n); old = highest.Load() {
		}
		for range 50 {
			runtime.Gosched()
		}
		return nil
	}
	var wg sync.WaitGroup
	for range 500 {
		wg.Go(func() {
			if got := w.callWith(t.Context()); !got.is(codes.OK) && !got.is(codes.ResourceExhausted) {
				t.Errorf("%v", got.Status)
			}
		})
	}
	wg.Wait()
	if n, free := highest.Load(), left(t, w.limiter, "slots"); n > 7 || free != 7 {
		t.Errorf("%d at a time; %d slots are left", n, free)
	}
}

// A long call keeps its slot.
func TestSlotsAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, weir.Rules{Rules: []weir.Rule{slots(1)}}), weir.Options{})
		limit := grpclimit.New(l, grpclimit.Options{})
		_, err := limit.Unary(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: unary}, func(context.Context, any) (any, error) {
			for range 60 {
				time.Sleep(5 * time.Second)
				if got := left(t, l, "slots"); got != 0 {
					t.Fatalf("%d slots are left", got)
				}
			}
			return &testgrpc.SimpleResponse{}, nil
		})
		if got := left(t, l, "slots"); got != 1 || err != nil {
			t.Errorf("%d slots are left; %v", got, err)
		}
	})
}

// lame is a store that fails for one rule.
type lame struct{ *memstore.Store }

func (s lame) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	for i := range charges {
		if charges[i].Policy.Rule == "other" {
			results[i] = counter.Result{Err: errors.New("gone")}
			continue
		}
		s.Store.Take(ctx, charges[i:i+1], results[i:i+1])
	}
}

// If a client disconnects and the store fails for a rule, the call isn't served, and keeps no slot.
func TestSlotsOfDisconnectedClients(t *testing.T) {
	set := compile(t, weir.Rules{Rules: []weir.Rule{slots(1), {ID: "other", By: []string{}, Limits: per(1)}}})
	store := memstore.New(memstore.Options{})
	limit := grpclimit.New(weir.NewLimiter(lame{store}, set, weir.Options{}), grpclimit.Options{})
	ctx, leave := context.WithCancel(t.Context())
	leave()
	_, err := limit.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: unary}, func(context.Context, any) (any, error) {
		t.Error("the call was served")
		return nil, nil
	})
	if got := left(t, weir.NewLimiter(store, set, weir.Options{}), "slots"); status.Code(err) != codes.Canceled || got != 1 {
		t.Errorf("%v; %d slots are left", err, got)
	}
}
