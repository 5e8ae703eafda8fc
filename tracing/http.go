package tracing

import (
	"context"
	"net/http"
	"strings"

	"github.com/felixge/httpsnoop"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/internal/observer"
)

// w3c reads and writes traceparent and tracestate. It ignores baggage, which may hold anything, even secrets.
var w3c propagation.TraceContext

// Handler makes a span of each request, as a child of the span in the request's W3C trace context. The span is in the context
// that the next handler gets. It has the method, the status, and the [http.ServeMux] pattern that matched.
func (t *Tracer) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := extract(r.Context(), r.Header.Get("traceparent"), r.Header.Get("tracestate"))
		ctx, span := t.tracer.Start(ctx, method(r.Method), trace.WithSpanKind(trace.SpanKindServer))
		r = r.WithContext(ctx)
		if !span.IsRecording() {
			next.ServeHTTP(w, r)
			return
		}
		status, returned := 0, false
		defer func() { endRequest(span, r, status, returned) }() // even if the handler panics, as a proxy may
		next.ServeHTTP(httpsnoop.Wrap(w, httpsnoop.Hooks{
			WriteHeader: func(write httpsnoop.WriteHeaderFunc) httpsnoop.WriteHeaderFunc {
				return func(code int) {
					if status == 0 && (code >= 200 || code == http.StatusSwitchingProtocols) {
						status = code
					}
					write(code)
				}
			},
		}), r)
		returned = true
	})
}

// maxState is the longest tracestate that is kept, in bytes. W3C asks for at least 512. Longer ones could fill the memory.
const maxState = 512

// extract reads a trace context. It drops a tracestate longer than maxState.
func extract(ctx context.Context, traceparent, tracestate string) context.Context {
	carrier := propagation.MapCarrier{"traceparent": traceparent}
	if len(tracestate) <= maxState {
		carrier["tracestate"] = tracestate
	}
	return w3c.Extract(ctx, carrier)
}

// Continue returns a context in the caller's trace, which is given by the W3C trace context of a call. If ctx is in a trace
// already or traceparent is invalid, Continue returns ctx. It is for grpclimit.Options.Trace.
func Continue(ctx context.Context, traceparent, tracestate string) context.Context {
	if trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return extract(ctx, traceparent, tracestate)
}

func endRequest(span trace.Span, r *http.Request, status int, returned bool) {
	if status == 0 && returned {
		status = http.StatusOK
	}
	span.SetAttributes(attribute.String("http.request.method", method(r.Method)))
	if status > 0 {
		span.SetAttributes(attribute.Int("http.response.status_code", status))
	}
	if r.Pattern != "" {
		route := r.Pattern[strings.IndexByte(r.Pattern, ' ')+1:] // without the method
		span.SetName(method(r.Method) + " " + route)
		span.SetAttributes(attribute.String("http.route", route))
	}
	if status >= 500 || !returned {
		span.SetStatus(codes.Error, "")
	}
	span.End()
}

// method returns the method for span names. Clients can make up others, so those become _OTHER.
func method(m string) string {
	if m = observer.Method(m); m == "" || m == "other" {
		return "_OTHER"
	}
	return m
}

// Inject replaces the W3C trace context in h with that of ctx, if ctx is in a trace.
func Inject(ctx context.Context, h http.Header) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	h.Del("Traceparent")
	h.Del("Tracestate") // useless without the traceparent that it came with
	w3c.Inject(ctx, propagation.HeaderCarrier(h))
}
