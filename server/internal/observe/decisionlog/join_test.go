package decisionlog

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/internal/private"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/server/internal/observe/top"
	"github.com/weirhq/weir/tracing"
)

// A line has the trace of its request, and the same client name and fingerprint as /v1/top, so that an operator can go
// from one to the other. A decision without a line asks for neither.
func TestLinesNameTraceAndClient(t *testing.T) { synctest.Test(t, linesNameTraceAndClient) }

func linesNameTraceAndClient(t *testing.T) {
	provider := sdktrace.NewTracerProvider()
	clients := top.New(top.Options{})
	asked := 0
	var out bytes.Buffer
	l := start(&out, "", Options{Fingerprint: func(r *weir.Request) string {
		asked++
		return clients.Fingerprint(r)
	}})
	rules, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "orders", Limits: []weir.Limit{daily(1)}}}})
	if err != nil {
		t.Fatal(err)
	}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), rules, weir.Options{
		Trace: tracing.New(provider).Check,
		Observe: func(o *weir.Observation) {
			clients.Observe(o)
			l.Observe(o)
		},
	})
	ctx, span := provider.Tracer("test").Start(t.Context(), "request")
	req := weir.Request{APIKey: "sk_prod_secretsecret_c123"}
	for range perReason + 10 {
		if _, err := limiter.Check(ctx, &req); err != nil {
			t.Fatal(err)
		}
	}
	private.Tell(limiter, ctx, &weir.Request{}, weir.Decision{Reason: weir.ReasonOverloaded})
	if err := l.Close(time.Minute); err != nil {
		t.Fatal(err)
	}
	clients.Hottest()            // makes it count
	time.Sleep(10 * time.Second) // rates are computed over slots that have ended
	hot := top.NewCluster(clients, "n", nil, nil).Hot(ctx, top.Query{K: 10}).Clients[0].Fingerprint
	lines, leftOut := read(t, out.String())
	if len(lines) != perReason+1 || asked != perReason+1 || leftOut["refused"] != 9 {
		t.Fatalf("%d lines, %d fingerprints, %v left out", len(lines), asked, leftOut)
	}
	if first := lines[0]; first["trace_id"] != span.SpanContext().TraceID().String() || first["fingerprint"] != hot {
		t.Errorf("%v, but the trace is %s and the client %s", first, span.SpanContext().TraceID(), hot)
	}
	if last := lines[perReason]; last["trace_id"] != span.SpanContext().TraceID().String() || last["fingerprint"] != nil {
		t.Errorf("of nobody: %v", last)
	}
}
