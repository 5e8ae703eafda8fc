package envoy_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/edge/envoy"
)

// TestHostileRequests checks that a request that Envoy can't have sent is refused with an explanation, and that the
// next request is answered.
func TestHostileRequests(t *testing.T) {
	s := newService(t, memstore.New(memstore.Options{}), envoy.Options{}, envoy.File{Name: "all.yaml", Text: []byte(everyKey)})
	client := rls.NewRateLimitServiceClient(dial(t, s))
	many := func(n int, d string) []string {
		list := make([]string, n)
		for i := range list {
			list[i] = d
		}
		return list
	}
	broken := request("all", "plain=x")
	broken.Descriptors[0].Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1, Unit: 99}
	unkeyed := request("all", "plain=x")
	unkeyed.Descriptors[0].Entries[0].Key = ""
	for name, c := range map[string]struct {
		req  *rls.RateLimitRequest
		code codes.Code
		want string
	}{
		"no domain":             {request("", "a=1"), codes.InvalidArgument, "domain: must not be empty"},
		"no descriptors":        {request("all"), codes.InvalidArgument, "descriptors: must not be empty"},
		"thousands of them":     {request("all", many(5000, "a=1")...), codes.InvalidArgument, "descriptors: there are 5000: a request has at most 64"},
		"thousands of entries":  {request("all", strings.Repeat("a=1 ", 5000)), codes.InvalidArgument, "descriptors[0].entries: there are 5000: a descriptor has at most 32"},
		"an empty key":          {unkeyed, codes.InvalidArgument, "descriptors[0].entries[0].key: must not be empty"},
		"a long key":            {request("all", strings.Repeat("x", 5000)+"=1"), codes.InvalidArgument, "descriptors[0].entries[0].key: has 5000 bytes"},
		"a long domain":         {request(strings.Repeat("x", 5000), "a=1"), codes.InvalidArgument, "domain: has 5000 bytes"},
		"a huge message":        {request("all", "a="+strings.Repeat("x", 1<<20)), codes.ResourceExhausted, "larger than max"},
		"a unit of its own":     {broken, codes.InvalidArgument, "descriptors[0].limit.unit"},
		"hits beyond all count": {request("all", "hits=18446744073709551615 plain=x"), codes.OK, "OVER_LIMIT OVER_LIMIT:2/MINUTE-0"},
		"as many of nothing":    {request("all", "hits=18446744073709551615 never=x"), codes.OK, "OVER_LIMIT OVER_LIMIT:0/SECOND-0"},
		"no entries":            {request("all", ""), codes.OK, "OK OK"},
	} {
		got, err := client.ShouldRateLimit(t.Context(), c.req)
		text := brief(got)
		if err != nil {
			text = status.Convert(err).Message()
		}
		if status.Code(err) != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s: got %s %q, want %s %q", name, status.Code(err), text, c.code, c.want)
		}
	}
	if got, err := client.ShouldRateLimit(t.Context(), request("all", "plain=fine")); err != nil || brief(got) != "OK OK:2/MINUTE-1" {
		t.Error(got, err)
	}
}

// TestLongValues checks that a client can't bypass its limits by sending the longest headers that Envoy accepts. The
// service must read such requests, because Envoy lets a request pass if its check fails.
func TestLongValues(t *testing.T) {
	s := newService(t, memstore.New(memstore.Options{}), envoy.Options{}, envoy.File{Name: "all.yaml", Text: []byte(everyKey)})
	long := strings.Repeat("x", 60<<10)
	for way, connect := range over {
		ask := connect(t, s)
		for _, want := range []string{"OK OK OK:2/MINUTE-1", "OK OK OK:2/MINUTE-0", "OVER_LIMIT OK OVER_LIMIT:2/MINUTE-0"} {
			got, err := ask(t.Context(), request("all", "path="+long+" path="+long, "plain="+way+long))
			if err != nil || brief(got) != want {
				t.Errorf("%s: %v %v, want %s", way, brief(got), err, want)
			}
		}
	}
}

// TestEndlessStreams checks that a connection that opens streams and never ends them gets only its share of streams and
// takes little memory, and that other connections are served.
func TestEndlessStreams(t *testing.T) {
	s := newService(t, memstore.New(memstore.Options{}), envoy.Options{}, envoy.File{Name: "all.yaml", Text: []byte(everyKey)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := envoy.NewServer(s, envoy.ServerOptions{})
	go server.Serve(l)
	defer server.Stop()
	hostile, good := connect(t, l), connect(t, l)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := heap()
	for range 250 { // some wait in the client, because the server allows fewer streams
		// A stream whose request is sent but never ended.
		stream, err := hostile.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, rls.RateLimitService_ShouldRateLimit_FullMethodName)
		if err == nil {
			err = stream.SendMsg(&rls.RateLimitRequest{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if more := heap() - before; more > 64<<20 {
		t.Errorf("they take %d MiB", more>>20)
	}
	if got, err := rls.NewRateLimitServiceClient(good).ShouldRateLimit(t.Context(), request("all", "plain=x")); err != nil || got.OverallCode != rls.RateLimitResponse_OK {
		t.Error(got, err)
	}
	// Envoy's open health stream doesn't prevent a graceful stop.
	watch, err := healthpb.NewHealthClient(good).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "ratelimit"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING} {
		if got, err := watch.Recv(); err != nil || got.Status != want {
			t.Fatal(got, err)
		}
		server.Drain()
	}
	soon, done := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer done()
	if err := server.Shutdown(soon); err != context.DeadlineExceeded {
		t.Errorf("a server stopped in spite of open streams: %v", err)
	}
}

// hurried is a store that records how much time its caller has left.
type hurried struct {
	counter.Store
	left time.Duration
}

func (h *hurried) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	d, _ := ctx.Deadline()
	h.left = time.Until(d)
	h.Store.Take(ctx, charges, results)
}

// TestSilentStreams checks that if the node has thousands of goroutines, a stream without a request is ended after 10
// s, whatever its deadline, and if it has many thousands, after 100 ms. Requests that arrive and their store calls keep
// their usual time, and health watches stay open.
func TestSilentStreams(t *testing.T) {
	store := &hurried{Store: memstore.New(memstore.Options{})}
	s := newService(t, store, envoy.Options{}, envoy.File{Name: "all.yaml", Text: []byte(everyKey)})
	open := func(ctx context.Context, conn *grpc.ClientConn, method string) grpc.ClientStream {
		t.Helper()
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(1 << 20)
		server := envoy.NewServer(s, envoy.ServerOptions{})
		go server.Serve(l)
		defer server.Stop()
		conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		patient, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		watch, err := healthpb.NewHealthClient(conn).Watch(patient, &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		crowd := func(n int) {
			for range n {
				go func() { <-stop }()
			}
		}
		crowd(1 << 10)
		for _, ctx := range []context.Context{t.Context(), patient} {
			began := time.Now()
			err := open(ctx, conn, rls.RateLimitService_ShouldRateLimit_FullMethodName).RecvMsg(&rls.RateLimitResponse{})
			if took := time.Since(began); status.Code(err) != codes.DeadlineExceeded || took != 10*time.Second {
				t.Errorf("it ended after %s: %v", took, err)
			}
		}
		asked := func(ctx context.Context, want time.Duration) {
			t.Helper()
			got, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request("all", "plain=x"))
			if err != nil || got.OverallCode != rls.RateLimitResponse_OK || store.left != want {
				t.Errorf("%v, %v: the store had %s, want %s", got, err, store.left, want)
			}
		}
		asked(t.Context(), 15*time.Millisecond)
		crowd(16 << 10)
		began := time.Now()
		err = open(t.Context(), conn, rls.RateLimitService_ShouldRateLimit_FullMethodName).RecvMsg(&rls.RateLimitResponse{})
		if took := time.Since(began); status.Code(err) != codes.DeadlineExceeded || took != 100*time.Millisecond {
			t.Errorf("in a crowd it ended after %s: %v", took, err)
		}
		asked(t.Context(), 15*time.Millisecond)
		close(stop)
		server.Drain()
		if got, err := watch.Recv(); err != nil || got.Status != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("a watch was ended: %v, %v", got, err)
		}
	})
}

// TestManyWatches checks that the node serves 4,096 health watches, as many as there may be connections, and refuses
// more.
func TestManyWatches(t *testing.T) {
	s := newService(t, memstore.New(memstore.Options{}), envoy.Options{}, envoy.File{Name: "all.yaml", Text: []byte(everyKey)})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := envoy.NewServer(s, envoy.ServerOptions{})
	go server.Serve(l)
	defer server.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last healthpb.HealthClient
	watch := func() (*healthpb.HealthCheckResponse, error) {
		w, err := last.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err != nil {
			return nil, err
		}
		return w.Recv()
	}
	for i := range 4096 {
		if i%250 == 0 { // the server allows 256 streams on a connection
			last = healthpb.NewHealthClient(connect(t, l))
		}
		if _, err := watch(); err != nil {
			t.Fatal(i, err)
		}
	}
	if _, err := watch(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	if _, err := last.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestReflectionIsOff checks that reflection is off by default.
func TestReflectionIsOff(t *testing.T) {
	s := newService(t, memstore.New(memstore.Options{}), envoy.Options{}, envoy.File{Name: "all.yaml", Text: []byte(everyKey)})
	for _, on := range []bool{false, true} {
		server := envoy.NewServer(s, envoy.ServerOptions{Reflection: on})
		_, there := server.GetServiceInfo()["grpc.reflection.v1.ServerReflection"]
		if there != on {
			t.Errorf("reflection %v: it is there: %v", on, there)
		}
	}
}

// stalled is a store that doesn't answer until it is released.
type stalled struct {
	counter.Store
	inside, release chan struct{}
}

func (s *stalled) Take(ctx context.Context, charges []counter.Charge, results []counter.Result) {
	s.inside <- struct{}{}
	<-s.release
	s.Store.Take(ctx, charges, results)
}

// TestShedding checks that requests beyond those in flight wait for as long as their deadline allows, and then get an
// error, so that Envoy applies its failure mode.
func TestShedding(t *testing.T) {
	var seen []weir.Reason
	store := &stalled{Store: memstore.New(memstore.Options{}), inside: make(chan struct{}, 1), release: make(chan struct{})}
	limiter := weir.NewLimiter(store, nil, weir.Options{Observe: func(o *weir.Observation) {
		if o.Request.Edge != "envoy" {
			panic(fmt.Sprint("edge ", o.Request.Edge))
		}
		seen = append(seen, o.Decision.Reason)
	}})
	s := envoy.New(limiter, envoy.Options{Configured: true, MaxInFlight: 1})
	config, _, err := envoy.Parse([]envoy.File{{Name: "all.yaml", Text: []byte(everyKey)}}, envoy.Modes{})
	if err != nil {
		t.Fatal(err)
	}
	s.SetConfig(config)
	first := make(chan error, 1)
	go func() {
		_, err := s.ShouldRateLimit(t.Context(), request("all", "plain=x"))
		first <- err
	}()
	<-store.inside
	if _, err := s.ShouldRateLimit(t.Context(), request("all", "plain=x")); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if len(seen) != 1 || seen[0] != weir.ReasonOverloaded {
		t.Error(seen)
	}
	close(store.release)
	if err := <-first; err != nil {
		t.Error(err)
	}
}
