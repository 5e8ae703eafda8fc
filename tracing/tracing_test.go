package tracing_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/tracing"
)

const (
	caller   = "4bf92f3577b34da6a3ce929d0e0e4736"
	parent   = "00f067aa0ba902b7"
	sampled  = "00-" + caller + "-" + parent + "-01"
	unchosen = "00-" + caller + "-" + parent + "-00"
)

// traced returns a tracer, and the exporter that keeps its spans.
func traced(t testing.TB) (*tracing.Tracer, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	t.Cleanup(func() {
		if err := provider.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return tracing.New(provider), spans
}

func compile(t testing.TB, rules ...weir.Rule) *weir.RuleSet {
	t.Helper()
	set, err := weir.Compile(weir.Rules{Version: 7, Rules: rules, Deny: []string{"sk_denied"}})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// attributes returns the attributes of a span, as text.
func attributes(s tracetest.SpanStub) string {
	var all []string
	for _, a := range s.Attributes {
		all = append(all, fmt.Sprintf("%s=%s", a.Key, a.Value.String()))
	}
	return strings.Join(all, " ")
}

func TestSpanOfACheck(t *testing.T) {
	tracer, spans := traced(t)
	told := 0
	rules := compile(t,
		weir.Rule{ID: "orders", Match: weir.Match{Endpoint: "/orders"}, Limits: []weir.Limit{weir.PerHour(1)}},
		weir.Rule{ID: "login", Match: weir.Match{Endpoint: "/login"}, By: []string{"user"}, Missing: weir.MissingRefuse, Limits: []weir.Limit{weir.PerHour(1)}})
	l := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{Trace: tracer.Check, Observe: func(*weir.Observation) { told++ }})
	for _, c := range []struct {
		req  weir.Request
		want string
	}{
		{weir.Request{APIKey: "sk_1", Path: "/orders"}, "weir.outcome=allowed weir.reason=within weir.edge=library weir.rules_version=7 weir.degraded=false weir.rule=orders"},
		{weir.Request{APIKey: "sk_1", Path: "/orders", Edge: "grpc"}, "weir.outcome=refused weir.reason=limited weir.edge=grpc weir.rules_version=7 weir.degraded=false weir.rule=orders"},
		{weir.Request{APIKey: "sk_1", Path: "/orders", Peek: true}, "weir.outcome=refused weir.reason=limited weir.edge=library weir.rules_version=7 weir.degraded=false weir.rule=orders weir.peek=true"},
		{weir.Request{APIKey: "sk_denied", Path: "/orders"}, "weir.outcome=refused weir.reason=denied weir.edge=library weir.rules_version=7 weir.degraded=false"},
		{weir.Request{Path: "/login"}, "weir.outcome=refused weir.reason=identity weir.edge=library weir.rules_version=7 weir.degraded=false weir.rule=login"},
	} {
		spans.Reset()
		if _, err := l.Check(t.Context(), &c.req); err != nil {
			t.Fatal(err)
		}
		got := spans.GetSpans()
		if len(got) != 1 || got[0].Name != "weir.check" || got[0].SpanKind != trace.SpanKindInternal || attributes(got[0]) != c.want {
			t.Errorf("%v, want %s", got, c.want)
		}
	}
	policy, err := counter.NewPolicy("mine", weir.PerHour(1))
	if err != nil {
		t.Fatal(err)
	}
	spans.Reset()
	if _, err := private.Take(l, t.Context(), &weir.Request{}, []counter.Charge{{Counter: counter.Counter{Policy: policy}, N: 1}}, nil); err != nil {
		t.Fatal(err)
	}
	if got := spans.GetSpans(); len(got) != 1 || !strings.Contains(attributes(got[0]), "weir.rule=mine") {
		t.Errorf("a take: %v", got)
	}
	if told != 6 {
		t.Errorf("the observer beside the tracer was told of %d decisions, want 6", told)
	}
}

// TestContextOfRequests checks that the middleware passes on the trace of a request, and ignores a trace that isn't
// valid.
func TestContextOfRequests(t *testing.T) {
	tracer, spans := traced(t)
	l := weir.NewLimiter(memstore.New(memstore.Options{}), compile(t, weir.Rule{ID: "all", Limits: []weir.Limit{weir.PerHour(1000)}}), weir.Options{Trace: tracer.Check})
	var seen trace.SpanContext
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders/{id}", func(_ http.ResponseWriter, r *http.Request) { seen = trace.SpanContextFromContext(r.Context()) })
	server := httptest.NewServer(tracer.Handler(httplimit.New(l, httplimit.Options{}).Wrap(mux)))
	defer server.Close()
	for _, c := range []struct {
		traceparent, tracestate string
		joins, spans            bool
	}{
		{sampled, "vendor=x", true, true},
		{unchosen, "", true, false},
		{"", "", false, true},
		{"00-" + caller + "-" + parent, "vendor=x", false, true},
		{"00-00000000000000000000000000000000-" + parent + "-01", "", false, true},
		{"ff-" + caller + "-" + parent + "-01", "", false, true},
		{"00-" + strings.ToUpper(caller) + "-" + parent + "-01", "", false, true},
		{strings.Repeat("00-", 3000), strings.Repeat("a=b,", 2000), false, true},
		{sampled, strings.Repeat("a=b,", 2000), true, true}, // the tracestate is dropped, but the trace isn't
	} {
		spans.Reset()
		req, err := http.NewRequest(http.MethodGet, server.URL+"/orders/17?key=s3cr3t", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Traceparent", c.traceparent)
		req.Header.Set("Tracestate", c.tracestate)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		got := spans.GetSpans()
		if joins := seen.TraceID().String() == caller; joins != c.joins || seen.IsSampled() != c.spans || !seen.IsValid() {
			t.Errorf("%.60q: the handler finds %v", c.traceparent, seen)
		}
		if !c.spans {
			if len(got) != 0 {
				t.Errorf("%q: %d spans, want none", c.traceparent, len(got))
			}
			continue
		}
		if len(got) != 2 {
			t.Errorf("%q: %d spans, want 2", c.traceparent, len(got))
			continue
		}
		check, request := got[0], got[1]
		if request.Name != "GET" && request.Name != "GET /orders/{id}" || request.SpanKind != trace.SpanKindServer || check.Parent.SpanID() != request.SpanContext.SpanID() ||
			seen.SpanID() != request.SpanContext.SpanID() || c.joins != (request.Parent.SpanID().String() == parent) {
			t.Errorf("%.60q: %v and %v", c.traceparent, request, check)
		}
		if all := fmt.Sprint(got); strings.Contains(all, "s3cr3t") || strings.Contains(all, "/orders/17") || strings.Contains(all, "127.0.0.1") {
			t.Errorf("a span tells the path, the query or the address: %s", all)
		}
	}
}

// TestRequestsThatEndBadly checks that requests get a span even if they fail.
func TestRequestsThatEndBadly(t *testing.T) {
	tracer, spans := traced(t)
	mux := http.NewServeMux()
	mux.Handle("/busy", tracer.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusServiceUnavailable)
	})))
	mux.Handle("/panic", tracer.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })))
	server := httptest.NewServer(mux)
	defer server.Close()
	for path, want := range map[string]string{
		"/busy":  "_OTHER /busy http.request.method=_OTHER http.response.status_code=503 http.route=/busy",
		"/panic": "_OTHER /panic http.request.method=_OTHER http.route=/panic", // no status, because there was no response
	} {
		spans.Reset()
		req, err := http.NewRequest("BREW", server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
		}
		got := spans.GetSpans()
		if len(got) != 1 || got[0].Name+" "+attributes(got[0]) != want || got[0].Status.Code != codes.Error {
			t.Errorf("%s: %v, want %s", path, got, want)
		}
	}
}

// TestInject checks that a new trace replaces the old one completely, and that nothing changes without a trace.
func TestInject(t *testing.T) {
	tracer, _ := traced(t)
	h := http.Header{"Traceparent": {"nonsense"}, "Tracestate": {"vendor=x"}}
	tracing.Inject(t.Context(), h)
	if h.Get("Traceparent") != "nonsense" || h.Get("Tracestate") != "vendor=x" {
		t.Errorf("without a trace, headers become %v", h)
	}
	ctx, end := tracer.Check(t.Context())
	tracing.Inject(ctx, h)
	if id := trace.SpanContextFromContext(ctx).TraceID().String(); !strings.Contains(h.Get("Traceparent"), id) || h.Get("Tracestate") != "" {
		t.Errorf("headers become %v, want the trace %s", h, id)
	}
	end(&weir.Observation{Request: &weir.Request{}, Decision: &weir.Decision{}})
}

// A span keeps its tracestate in memory until it is sent, so a long tracestate of a client is dropped. The trace
// continues in any case.
func TestLongTracestatesAreLeftOut(t *testing.T) {
	entry := func(name string, n int) string { return name + "=" + strings.Repeat("x", n) }
	for state, kept := range map[string]bool{
		entry("a", 1):                           true,
		entry("a", 251) + "," + entry("b", 256): true, // 512 bytes
		entry("a", 252) + "," + entry("b", 256): false,
	} {
		tracer, spans := traced(t)
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Traceparent", sampled)
		r.Header.Set("Tracestate", state)
		tracer.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
		got := spans.GetSpans()
		if len(got) != 1 || got[0].SpanContext.TraceID().String() != caller || (got[0].SpanContext.TraceState().String() == state) != kept {
			t.Errorf("of %d bytes, %d are kept", len(state), len(got[0].SpanContext.TraceState().String()))
		}
	}
}
