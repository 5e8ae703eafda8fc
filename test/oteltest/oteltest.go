// Package oteltest has an OpenTelemetry collector for tests. It keeps what it receives over HTTP or gRPC, so that tests can
// check it.
package oteltest

import (
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Collector receives metrics and spans. Start one with [HTTP] or [GRPC].
type Collector struct {
	URL string

	mu       sync.Mutex    // guards the fields below
	arrived  chan struct{} // closed when something arrives
	received Received
}

// Received is everything that a collector has received.
type Received struct {
	// Headers has the headers of each report, with names in lower case.
	Headers []map[string][]string
	// Resource identifies the sender of the last report, and Metrics are the metrics in that report, by name.
	Resource map[string]string
	Metrics  map[string]*metrics.Metric
	Spans    []Span
	// Text is all reports as text, to search for what must not be there.
	Text string
}

// Span is a span. Its attributes are converted to text.
type Span struct {
	*trace.Span
	Attributes map[string]string
}

// Trace, ID and Parent return the span's ids in hex, as in a traceparent. For a root, Parent returns "".
func (s Span) Trace() string  { return fmt.Sprintf("%x", s.TraceId) }
func (s Span) ID() string     { return fmt.Sprintf("%x", s.SpanId) }
func (s Span) Parent() string { return fmt.Sprintf("%x", s.ParentSpanId) }

// HTTP starts a collector that accepts http/protobuf.
func HTTP(t testing.TB) *Collector {
	c := &Collector{arrived: make(chan struct{})}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

// GRPC starts a collector that accepts gRPC.
func GRPC(t testing.TB) *Collector {
	c := &Collector{arrived: make(chan struct{})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(c.export))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(l); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	c.URL = "http://" + l.Addr().String()
	return c
}

func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	report, known := map[string]proto.Message{
		"/v1/metrics": &collectormetrics.ExportMetricsServiceRequest{},
		"/v1/traces":  &collectortrace.ExportTraceServiceRequest{},
	}[r.URL.Path]
	if !known {
		http.NotFound(w, r)
		return
	}
	data, err := io.ReadAll(body)
	if err == nil {
		err = proto.Unmarshal(data, report)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.take(r.Header, report)
}

// export handles every gRPC call.
func (c *Collector) export(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	report, known := map[string]proto.Message{
		collectormetrics.MetricsService_Export_FullMethodName: &collectormetrics.ExportMetricsServiceRequest{},
		collectortrace.TraceService_Export_FullMethodName:     &collectortrace.ExportTraceServiceRequest{},
	}[method]
	if !known {
		return status.Error(codes.Unimplemented, method)
	}
	if err := stream.RecvMsg(report); err != nil {
		return err
	}
	h, _ := metadata.FromIncomingContext(stream.Context())
	c.take(h, report)
	return stream.SendMsg(&emptypb.Empty{})
}

// take notes a report.
func (c *Collector) take(headers map[string][]string, report proto.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r := report.(type) {
	case *collectormetrics.ExportMetricsServiceRequest:
		c.received.Metrics = map[string]*metrics.Metric{}
		for _, rm := range r.ResourceMetrics {
			c.received.Resource = Attributes(rm.Resource.GetAttributes())
			for _, sm := range rm.ScopeMetrics {
				for _, m := range sm.Metrics {
					c.received.Metrics[m.Name] = m
				}
			}
		}
	case *collectortrace.ExportTraceServiceRequest:
		for _, rs := range r.ResourceSpans {
			c.received.Resource = Attributes(rs.Resource.GetAttributes())
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					c.received.Spans = append(c.received.Spans, Span{s, Attributes(s.Attributes)})
				}
			}
		}
	}
	lower := map[string][]string{}
	for name, values := range headers {
		lower[strings.ToLower(name)] = values
	}
	c.received.Headers = append(c.received.Headers, lower)
	c.received.Text += fmt.Sprintln(report)
	close(c.arrived)
	c.arrived = make(chan struct{})
}

// Attributes converts the values of attributes to text.
func Attributes(list []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range list {
		switch v := a.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			out[a.Key] = v.StringValue
		case *common.AnyValue_BoolValue:
			out[a.Key] = fmt.Sprint(v.BoolValue)
		case *common.AnyValue_IntValue:
			out[a.Key] = fmt.Sprint(v.IntValue)
		default:
			out[a.Key] = a.Value.String()
		}
	}
	return out
}

// Received returns everything that was received so far.
func (c *Collector) Received() Received {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received
}

// Await waits until enough returns true. It checks again whenever something arrives.
func (c *Collector) Await(t testing.TB, what string, enough func() bool) {
	t.Helper()
	late := time.After(30 * time.Second)
	for {
		c.mu.Lock()
		arrived := c.arrived
		c.mu.Unlock()
		if enough() {
			return
		}
		select {
		case <-arrived:
		case <-late:
			t.Fatalf("the collector still waits for %s; it has:\n%s", what, c.Received().Text)
		}
	}
}
