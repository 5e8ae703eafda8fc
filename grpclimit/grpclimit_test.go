package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/grpclimit"
	"github.com/weirhq/weir/httplimit"
)

// TestEndpoints checks that a rule's endpoint may be a method, with or without POST, or a whole service.
func TestEndpoints(t *testing.T) {
	for endpoint, limited := range map[string][2]bool{
		unary: {true, false}, "POST " + unary: {true, false}, "/grpc.testing.TestService/": {true, true}, "/grpc.testing.TestService/{method}": {true, true},
		"GET " + unary: {false, false}, empty: {false, true},
	} {
		w := newWorld(t, compile(t, weir.Rules{Rules: []weir.Rule{{ID: "r", By: []string{}, Match: weir.Match{Endpoint: endpoint}, Algorithm: weir.FixedWindow, Limits: per(1)}}}), grpclimit.Options{})
		var got [2]bool
		for range 2 {
			got[0] = w.call(t).is(codes.ResourceExhausted)
		}
		for range 2 {
			_, err := w.EmptyCall(t.Context(), &testgrpc.Empty{})
			got[1] = status.Code(err) == codes.ResourceExhausted
		}
		if got != limited {
			t.Errorf("%s limits %v, want %v", endpoint, got, limited)
		}
	}
}

// TestARefusal checks that the trailers of a refusal have everything that a client needs, and not the client's key.
func TestARefusal(t *testing.T) {
	const secret = "sk_prod_s3cr3t"
	w := newWorld(t, compile(t, weir.Rules{Rules: []weir.Rule{
		{ID: "orders", Algorithm: weir.FixedWindow, Limits: per(2)},
		{ID: "address", By: []string{"ip"}, Algorithm: weir.FixedWindow, Limits: per(2)},
		{ID: "plenty", Limits: per(1000)},
		{ID: "tried", Shadow: true, Algorithm: weir.FixedWindow, Limits: per(1)},
	}}), grpclimit.Options{})
	for left := range 2 {
		got := w.call(t, "x-api-key", secret)
		if !got.is(codes.OK) || got.header.Get("x-ratelimit-remaining")[0] != fmt.Sprint(1-left) || got.header.Get("ratelimit")[0] == "" || len(got.trailer) != 0 {
			t.Errorf("%v, header %v, trailer %v", got.Status, got.header, got.trailer)
		}
	}
	got := w.call(t, "x-api-key", secret)
	retry, quota, info := detail[*errdetails.RetryInfo](got), detail[*errdetails.QuotaFailure](got), detail[*errdetails.ErrorInfo](got)
	if !got.is(codes.ResourceExhausted) || got.Message() != "Rate limit of 2 requests per 366 days exceeded" {
		t.Errorf("%v", got.Status)
	}
	if wait := retry.GetRetryDelay().AsDuration(); wait <= 0 || wait > 366*24*time.Hour {
		t.Errorf("the retry delay is %s", wait)
	}
	if len(quota.GetViolations()) != 2 || quota.Violations[0].Subject != "rule:orders" || quota.Violations[1].QuotaId != "address" || quota.Violations[1].QuotaValue != 2 ||
		quota.Violations[1].Description != got.Message() {
		t.Errorf("violations: %v", quota)
	}
	if info.GetReason() != "RATE_LIMIT_EXCEEDED" || info.Domain != "weir" || info.Metadata["rule"] != "orders" {
		t.Errorf("%v", info)
	}
	for name, want := range map[string]string{"x-ratelimit-limit": "2", "x-ratelimit-remaining": "0", "x-ratelimit-rule": "orders", "grpc-retry-pushback-ms": "-1"} {
		if v := got.trailer.Get(name); len(v) != 1 || v[0] != want {
			t.Errorf("%s is %q, want %q", name, v, want)
		}
	}
	if len(got.trailer.Get("retry-after")) != 1 || len(got.header) != 0 {
		t.Errorf("trailer %v, header %v", got.trailer, got.header)
	}
	if text := fmt.Sprint(got.Proto(), got.trailer); strings.Contains(text, secret) || strings.Contains(text, "127.0.0.1") {
		t.Errorf("the refusal names the client: %s", text)
	}
	if w.service.served.Load() != 2 {
		t.Errorf("%d were served", w.service.served.Load())
	}
}

// TestCodes checks the status codes of refusals, and what they say about retries.
func TestCodes(t *testing.T) {
	rules := weir.Rules{Deny: []string{"blocked"}, Rules: []weir.Rule{
		{ID: "user", Match: weir.Match{Endpoint: unary}, By: []string{"user"}, Missing: weir.MissingRefuse, Limits: per(10)},
		{ID: "small", By: []string{}, Match: weir.Match{APIKeyPattern: "big"}, Limits: per(2)},
	}}
	opts := grpclimit.Options{
		Identity: httplimit.Identity{APIKey: httplimit.Source{Header: "X-API-Key", Bearer: true}, User: httplimit.Source{Header: "X-User"}},
		Cost: func(_ context.Context, method string, message any) int64 {
			if _, ok := message.(*testgrpc.SimpleRequest); !ok || method != unary {
				t.Errorf("Cost was called for %s %T", method, message)
			}
			return 3
		},
	}
	w := newWorld(t, compile(t, rules), opts)
	without := newWorld(t, nil, opts) // a node that has just started, and has no rules
	for name, c := range map[string]struct {
		got      called
		code     codes.Code
		reason   string
		retry    bool
		pushback string
	}{
		"denied":         {w.call(t, "x-api-key", "blocked"), codes.PermissionDenied, "KEY_BLOCKED", false, "-1"},
		"nobody":         {w.call(t), codes.PermissionDenied, "IDENTITY_REQUIRED", false, "-1"},
		"twice":          {w.call(t, "x-api-key", "a", "x-api-key", "a"), codes.InvalidArgument, "AMBIGUOUS_IDENTITY", false, "-1"},
		"two places":     {w.call(t, "x-api-key", "a", "authorization", "Bearer b"), codes.InvalidArgument, "AMBIGUOUS_IDENTITY", false, "-1"},
		"a list":         {w.call(t, "x-api-key", "a,b"), codes.InvalidArgument, "AMBIGUOUS_IDENTITY", false, "-1"},
		"never":          {w.call(t, "x-api-key", "big", "x-user", "u"), codes.ResourceExhausted, "RATE_LIMIT_EXCEEDED", false, "-1"},
		"no rules yet":   {without.call(t), codes.Unavailable, "LIMITER_UNAVAILABLE", true, ""},
		"within a limit": {w.call(t, "x-api-key", "a", "x-user", "u"), codes.OK, "", false, ""},
	} {
		info, retry := detail[*errdetails.ErrorInfo](c.got), detail[*errdetails.RetryInfo](c.got)
		if !c.got.is(c.code) || info.GetReason() != c.reason || (retry != nil) != c.retry || c.pushback != "" && c.got.trailer.Get("grpc-retry-pushback-ms")[0] != c.pushback {
			t.Errorf("%s: %v, trailer %v", name, c.got.Proto(), c.got.trailer)
		}
	}
	if n := w.service.served.Load(); n != 1 {
		t.Errorf("%d were served", n)
	}
}

// TestRetriesOfClients checks the automatic retries of gRPC clients: they arrive when there is room, and aren't sent if
// that takes too long.
func TestRetriesOfClients(t *testing.T) {
	policy := grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
		"maxAttempts": 5, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`)
	var checks atomic.Int64
	observe := weir.Options{Observe: func(*weir.Observation) { checks.Add(1) }}
	w := newWorld(t, compile(t, weir.Rules{Rules: []weir.Rule{{ID: "r", Limits: []weir.Limit{{Count: 10, Window: time.Second, Burst: 1}}}}}), grpclimit.Options{}, policy, observe)
	for range 3 {
		if got := w.call(t, "x-api-key", "k"); !got.is(codes.OK) {
			t.Errorf("%v", got.Status)
		}
	}
	if n := checks.Load(); n < 4 || n > 9 { // one check for each call, and one or two retries of the second and third
		t.Errorf("%d checks", n)
	}
	checks.Store(0)
	w = newWorld(t, compile(t, weir.Rules{Rules: []weir.Rule{{ID: "r", Algorithm: weir.FixedWindow, Limits: per(1)}}}), grpclimit.Options{}, policy, observe)
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "k"), 20*time.Second)
	defer cancel()
	w.callWith(ctx)
	if got := w.callWith(ctx); !got.is(codes.ResourceExhausted) || checks.Load() != 2 {
		t.Errorf("%v after %d checks", got.Status, checks.Load())
	}
}

// TestWhoIsCounted checks that calls are counted by the peer's address, unless a trusted proxy gives another, and by
// what Identify returns.
func TestWhoIsCounted(t *testing.T) {
	var seen atomic.Pointer[weir.Request]
	observe := weir.Options{Observe: func(o *weir.Observation) { r := *o.Request; seen.Store(&r) }}
	rules := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "r", By: []string{"ip", "header:X-Tenant", "header:Host"}, Limits: per(100)}}})
	for name, c := range map[string]struct {
		opts grpclimit.Options
		md   []string
		want string
	}{
		"a forged chain": {grpclimit.Options{}, []string{"x-forwarded-for", "192.0.2.1", "x-api-key", "k"}, "grpc POST " + unary + " 127.0.0.1 k  false"},
		"a proxy":        {grpclimit.Options{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, []string{"x-forwarded-for", "192.0.2.1, 203.0.113.7"}, "grpc POST " + unary + " 203.0.113.7   false"},
		"a bearer":       {grpclimit.Options{Identity: httplimit.Identity{APIKey: httplimit.Source{Bearer: true}}}, []string{"authorization", "Bearer tok"}, "grpc POST " + unary + " 127.0.0.1 tok  false"},
		"code": {grpclimit.Options{Identify: func(ctx context.Context, method string, req *weir.Request) {
			if md, _ := metadata.FromIncomingContext(ctx); md.Get("x-session")[0] != "s" || method != unary || req.Path != unary {
				t.Errorf("identified by %v, %s", md, method)
			}
			req.User, req.KeyVerified = "u", true
		}}, []string{"x-session", "s"}, "grpc POST " + unary + " 127.0.0.1  u true"},
	} {
		w := newWorld(t, rules, c.opts, observe)
		w.call(t, append(c.md, "x-tenant", "t")...)
		r := seen.Load()
		if got := fmt.Sprint(r.Edge, " ", r.Method, " ", r.Path, " ", r.IP, " ", r.APIKey, " ", r.User, " ", r.KeyVerified); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	// Headers that rules count by are read from the metadata, even if only a later version of the rules uses them.
	w := newWorld(t, compile(t, weir.Rules{Rules: []weir.Rule{{ID: "r", By: []string{"header:X-Tenant"}, Algorithm: weir.FixedWindow, Limits: per(1)}}}), grpclimit.Options{})
	for i, tenant := range []string{"a", "b", "a"} {
		if got := w.call(t, "x-tenant", tenant, "x-group", "g"); got.is(codes.OK) != (i < 2) {
			t.Errorf("%s: %v", tenant, got.Status)
		}
	}
	w.limiter.SetRules(compile(t, weir.Rules{Rules: []weir.Rule{{ID: "g", By: []string{"header:X-Group"}, Algorithm: weir.FixedWindow, Limits: per(1)}}}))
	for i, want := range []codes.Code{codes.OK, codes.ResourceExhausted, codes.InvalidArgument} {
		md := []string{"x-tenant", "a", "x-group", "g"}
		if i == 2 {
			md = append(md, "x-group", "h")
		}
		if got := w.call(t, md...); !got.is(want) {
			t.Errorf("%d: %v", i, got.Status)
		}
	}
}

// TestStreams checks that a stream is checked once, however many messages it has.
func TestStreams(t *testing.T) {
	w := newWorld(t, compile(t, weir.Rules{Rules: []weir.Rule{{ID: "r", Match: weir.Match{Endpoint: duplex}, Algorithm: weir.FixedWindow, Limits: per(1)}}}), grpclimit.Options{
		Cost: func(_ context.Context, _ string, message any) int64 {
			if message != nil {
				t.Errorf("a stream has the message %v", message)
			}
			return 0
		},
	})
	for i := range 2 {
		stream, err := w.FullDuplexCall(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if err = stream.Send(&testgrpc.StreamingOutputCallRequest{}); err != nil {
				break
			}
			if _, err = stream.Recv(); err != nil {
				break
			}
		}
		if i == 0 {
			header, _ := stream.Header()
			if err != nil || header.Get("x-ratelimit-remaining")[0] != "0" {
				t.Errorf("%v, header %v", err, header)
			}
			stream.CloseSend()
			continue
		}
		_, err = stream.Recv()
		if c := (called{Status: status.Convert(err)}); !c.is(codes.ResourceExhausted) || detail[*errdetails.RetryInfo](c) == nil || stream.Trailer().Get("x-ratelimit-rule")[0] != "r" {
			t.Errorf("%v, trailer %v", err, stream.Trailer())
		}
	}
}

// TestHealthIsNotLimited checks that health checks are limited only if the options ask for it.
func TestHealthIsNotLimited(t *testing.T) {
	rules := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "r", By: []string{}, Algorithm: weir.FixedWindow, Limits: per(1)}}})
	for _, c := range []struct {
		skip func(string) bool
		want codes.Code
	}{{nil, codes.OK}, {func(string) bool { return false }, codes.ResourceExhausted}} {
		w := newWorld(t, rules, grpclimit.Options{Skip: c.skip})
		w.call(t)
		if _, err := healthpb.NewHealthClient(w.conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != c.want {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
}

// TestCountByCode checks that a charge goes back if the rule doesn't count the call's status, but not if the call was
// canceled.
func TestCountByCode(t *testing.T) {
	rules := compile(t, weir.Rules{Rules: []weir.Rule{{ID: "login", Algorithm: weir.FixedWindow, Limits: per(2), Statuses: []int{401, 403}}}})
	gone := errors.New("gone")
	for name, c := range map[string]struct {
		answer error
		counts bool
	}{
		"OK":                  {nil, false},
		"unauthenticated":     {status.Error(codes.Unauthenticated, "who?"), true},
		"permission denied":   {fmt.Errorf("wrapped: %w", status.Error(codes.PermissionDenied, "no")), true},
		"not found":           {status.Error(codes.NotFound, "where?"), false},
		"an error of its own": {gone, false},
		"a call that it made": {context.DeadlineExceeded, false},
		"canceled":            {status.Error(codes.Canceled, "gone"), true},
	} {
		w := newWorld(t, rules, grpclimit.Options{})
		w.service.answer = func(context.Context) error { return c.answer }
		for range 2 {
			w.call(t, "x-api-key", "k")
		}
		if got := w.call(t, "x-api-key", "k"); got.is(codes.ResourceExhausted) != c.counts {
			t.Errorf("%s: %v", name, got.Status)
		}
		stream := newWorld(t, rules, grpclimit.Options{})
		stream.service.answer = w.service.answer
		for range 2 {
			s, err := stream.FullDuplexCall(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "k"))
			if err != nil {
				t.Fatal(err)
			}
			s.CloseSend()
			s.Recv()
		}
		if got := stream.call(t, "x-api-key", "k"); got.is(codes.ResourceExhausted) != c.counts {
			t.Errorf("a stream, %s: %v", name, got.Status)
		}
	}
}

// TestPanics checks that a call that ends in a panic counts, and that the next call is served.
func TestPanics(t *testing.T) {
	recovers := grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
		defer func() {
			if recover() != nil {
				err = status.Error(codes.Internal, "panic")
			}
		}()
		return handle(ctx, req)
	})
	w := newWorld(t, compile(t, weir.Rules{Rules: []weir.Rule{{ID: "r", Algorithm: weir.FixedWindow, Limits: per(3), Statuses: []int{401}}}}), grpclimit.Options{MaxInFlight: 1}, recovers)
	w.service.answer = func(context.Context) error { panic("a handler's") }
	for range 2 {
		if got := w.call(t, "x-api-key", "k"); !got.is(codes.Internal) {
			t.Errorf("%v", got.Status)
		}
	}
	w.service.answer = nil
	if got := w.call(t, "x-api-key", "k"); !got.is(codes.OK) || got.header.Get("x-ratelimit-remaining")[0] != "0" {
		t.Errorf("%v %v", got.Status, got.header)
	}
}

// TestQueues checks that a queue holds calls until their turn, and refuses at once those whose deadline is earlier.
func TestQueues(t *testing.T) {
	queue := func(n int64, window time.Duration, places int64) *weir.RuleSet {
		return compile(t, weir.Rules{Rules: []weir.Rule{{ID: "q", Algorithm: weir.LeakyQueue, MaxDelay: time.Hour, Limits: []weir.Limit{{Count: n, Window: window, Burst: places}}}}})
	}
	w := newWorld(t, queue(50, time.Second, 2), grpclimit.Options{})
	begun := time.Now()
	for range 4 {
		if got := w.call(t, "x-api-key", "k"); !got.is(codes.OK) {
			t.Errorf("%v", got.Status)
		}
	}
	if waited := time.Since(begun); waited < 55*time.Millisecond {
		t.Errorf("four turns of 20 ms took only %s", waited)
	}
	w = newWorld(t, queue(2, time.Hour, 2), grpclimit.Options{})
	w.call(t, "x-api-key", "k")
	for range 5 { // the queue has two places; refused calls leave them at once
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "k"), time.Minute)
		got := w.callWith(ctx)
		if cancel(); !got.is(codes.DeadlineExceeded) || detail[*errdetails.ErrorInfo](got).GetReason() != "QUEUE_TIMEOUT" {
			t.Errorf("%v", got.Proto())
		}
	}
	// A client that leaves the queue makes room for another. Two calls may wait, and a single rule may use only one of
	// these places.
	w = newWorld(t, queue(2, time.Hour, 10), grpclimit.Options{MaxWaiting: 2})
	w.call(t, "x-api-key", "k")
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "k"))
	left := make(chan called, 1)
	go func() { left <- w.callWith(ctx) }()
	until := func(reason string) {
		t.Helper()
		for got, deadline := "", time.Now().Add(time.Minute); got != reason; {
			if time.Now().After(deadline) {
				t.Fatalf("calls got %s, want %s", got, reason)
			}
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "k"), time.Minute)
			got = detail[*errdetails.ErrorInfo](w.callWith(ctx)).GetReason()
			cancel()
		}
	}
	until("QUEUE_FULL")
	cancel()
	if got := <-left; !got.is(codes.Canceled) {
		t.Errorf("%v", got.Status)
	}
	until("QUEUE_TIMEOUT")
}

// TestOverload checks that calls are refused if too many are being decided at the same time.
func TestOverload(t *testing.T) {
	inside, goOn := make(chan struct{}, 1), make(chan struct{})
	w := newWorld(t, compile(t, weir.Rules{}), grpclimit.Options{MaxInFlight: 1, Identify: func(context.Context, string, *weir.Request) {
		inside <- struct{}{}
		<-goOn
	}})
	first := make(chan called, 1)
	go func() { first <- w.callWith(context.Background()) }()
	<-inside
	if got := w.call(t); !got.is(codes.Unavailable) || detail[*errdetails.ErrorInfo](got).GetReason() != "OVERLOADED" || detail[*errdetails.RetryInfo](got) == nil {
		t.Errorf("%v", got.Proto())
	}
	close(goOn)
	if got := <-first; !got.is(codes.OK) {
		t.Errorf("%v", got.Status)
	}
}

// TestInvalidOptions checks that invalid options panic, as in httplimit.
func TestInvalidOptions(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an unknown dialect was accepted")
		}
	}()
	grpclimit.New(nil, grpclimit.Options{Answers: httplimit.Answers{Dialects: []httplimit.Dialect{"esperanto"}}})
}

// slow is a store that never responds before the deadline.
type slow struct{ counter.Store }

func (slow) Take(ctx context.Context, _ []counter.Charge, results []counter.Result) {
	<-ctx.Done()
	for i := range results {
		results[i] = counter.Result{Err: ctx.Err()}
	}
}

// TestShortDeadlines checks that a client can't avoid its limits with a deadline that is too short for the store, or by
// disconnecting.
func TestShortDeadlines(t *testing.T) {
	limit := grpclimit.New(weir.NewLimiter(slow{}, compile(t, weir.Rules{Rules: []weir.Rule{{ID: "all", Limits: per(1)}}}), weir.Options{}), grpclimit.Options{})
	hurried, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	left, leave := context.WithCancel(t.Context())
	leave()
	for want, ctx := range map[codes.Code]context.Context{codes.DeadlineExceeded: hurried, codes.Canceled: left} {
		_, err := limit.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: unary}, func(context.Context, any) (any, error) {
			t.Error("the call was served")
			return nil, nil
		})
		if status.Code(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
