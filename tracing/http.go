package tracing

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/felixge/httpsnoop"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// w3c reads and writes traceparent and tracestate, and no baggage: that may hold anything.
var w3c propagation.TraceContext

// Handler makes a span of each request, below the one that its W3C trace context names. The span is in the request's context.
// It has the method, the status, and the pattern of an [http.ServeMux] that chose the handler.
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
		defer func() { endRequest(span, r, status, returned) }() // also when the handler panics, as a proxy does whose client has gone
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

// maxState is how many bytes of tracestate are kept, as W3C asks for: clients could fill the memory with longer ones.
const maxState = 512

// extract reads a trace context. Of a longer tracestate nothing is kept.
func extract(ctx context.Context, traceparent, tracestate string) context.Context {
	carrier := propagation.MapCarrier{"traceparent": traceparent}
	if len(tracestate) <= maxState {
		carrier["tracestate"] = tracestate
	}
	return w3c.Extract(ctx, carrier)
}

// Continue returns a context in the caller's trace, by the W3C trace context that came with a call. It returns ctx if that is in
// a trace already, or if traceparent can't be read. It is for grpclimit.Options.Trace.
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

// methods are the ones that spans are named after. Clients can make up others.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"}

func method(m string) string {
	if slices.Contains(methods, m) {
		return m
	}
	return "_OTHER"
}

// Inject replaces the W3C trace context in the headers of a request by that of ctx, if ctx is in a trace.
func Inject(ctx context.Context, h http.Header) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	h.Del("Traceparent")
	h.Del("Tracestate") // which is no good without the traceparent that it came with
	w3c.Inject(ctx, propagation.HeaderCarrier(h))
}
