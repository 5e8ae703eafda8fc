// Package otlp sends metrics and traces to an OpenTelemetry collector. It is configured by the standard OTEL_*
// variables and by `otlp:` in weir.yaml.
//
// It sends the same metrics that Prometheus would scrape. While the collector is down, the node logs one line per
// minute. No check waits for the collector: spans that it doesn't accept in time are dropped.
//
// The contrib module's autoexport isn't used, because it takes no options: we couldn't pass it the endpoint from weir.yaml,
// the node's registry, the watch for outages, or the ban on redirects, which protects the headers. It would also add nine
// modules to the binary's 61.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/weirhq/weir/tracing"
)

// Sender sends a node's metrics and traces. Make one with [Start].
type Sender struct {
	// Tracer makes the spans that are sent. It is nil if no traces are sent.
	Tracer *tracing.Tracer

	stop []func(context.Context) error
}

// Node describes the node whose metrics and traces are sent.
type Node struct{ Name, Version string }

// Start starts to send the gatherer's metrics, and the spans of the Sender's Tracer, if they are configured. It doesn't
// wait for the collector.
func Start(ctx context.Context, c Config, n Node, g prometheus.Gatherer, log *slog.Logger) (*Sender, error) {
	s := &Sender{}
	if !c.sends(metrics) && !c.sends(traces) {
		return s, nil
	}
	quiet()
	of, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "weir"), attribute.String("service.version", n.Version), attribute.String("service.instance.id", n.Name)),
		resource.WithFromEnv(),
	)
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: must be name=value,name=value: %w", err)
	}
	if c.sends(metrics) {
		if err := s.sendMetrics(ctx, &c, of, g, log); err != nil {
			return nil, fmt.Errorf("OTLP: metrics: %w", err)
		}
	}
	if c.sends(traces) {
		if err := s.sendTraces(ctx, &c, of, log); err != nil {
			return nil, errors.Join(fmt.Errorf("OTLP: traces: %w", err), s.Close())
		}
	}
	return s, nil
}

// quiet keeps the library's own messages out of the log, because they may contain headers. Validate has checked the
// settings, and outage logs later failures.
func quiet() {
	otel.SetLogger(logr.Discard())
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))
}

func (s *Sender) sendMetrics(ctx context.Context, c *Config, of *resource.Resource, g prometheus.Gatherer, log *slog.Logger) error {
	var exporter metric.Exporter
	var err error
	if c.protocol(metrics) == overGRPC {
		exporter, err = otlpmetricgrpc.New(ctx, target(c, metrics, otlpmetricgrpc.WithEndpointURL)...)
	} else {
		exporter, err = otlpmetrichttp.New(ctx, target(c, metrics, otlpmetrichttp.WithEndpointURL, otlpmetrichttp.WithProxy(proxy))...)
	}
	if err != nil {
		return err
	}
	options := []metric.PeriodicReaderOption{metric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(g)))}
	if c.Interval > 0 && os.Getenv("OTEL_METRIC_EXPORT_INTERVAL") == "" {
		options = append(options, metric.WithInterval(c.Interval))
	}
	reader := metric.NewPeriodicReader(&metricExporter{exporter, newOutage(c, metrics, log)}, options...)
	s.stop = append(s.stop, metric.NewMeterProvider(metric.WithReader(reader), metric.WithResource(of)).Shutdown)
	return nil
}

func (s *Sender) sendTraces(ctx context.Context, c *Config, of *resource.Resource, log *slog.Logger) error {
	var exporter sdktrace.SpanExporter
	var err error
	if c.protocol(traces) == overGRPC {
		exporter, err = otlptracegrpc.New(ctx, target(c, traces, otlptracegrpc.WithEndpointURL)...)
	} else {
		exporter, err = otlptracehttp.New(ctx, target(c, traces, otlptracehttp.WithEndpointURL, otlptracehttp.WithProxy(proxy))...)
	}
	if err != nil {
		return err
	}
	options := []sdktrace.TracerProviderOption{sdktrace.WithBatcher(&spanExporter{exporter, newOutage(c, traces, log)}), sdktrace.WithResource(of)}
	if os.Getenv("OTEL_TRACES_SAMPLER") == "" {
		options = append(options, sdktrace.WithSampler(c.sampler()))
	}
	provider := sdktrace.NewTracerProvider(options...)
	s.Tracer = tracing.New(provider)
	s.stop = append(s.stop, provider.Shutdown)
	return nil
}

var errRedirect = errors.New("redirects aren't followed")

// proxy returns the proxy that the environment defines. An exporter calls it before each request to another host, so it
// also stops redirects: a redirected request would send the headers, and the secrets in them, to whatever host the
// collector names.
func proxy(r *http.Request) (*url.URL, error) {
	if r.Response != nil {
		return nil, errRedirect
	}
	return http.ProxyFromEnvironment(r)
}

// target appends the option for the endpoint in weir.yaml, unless a variable sets the endpoint.
func target[O any](c *Config, s signal, endpoint func(string) O, options ...O) []O {
	if _, other := s.variable("ENDPOINT"); c.Endpoint == "" || other != "" {
		return options
	}
	to, err := url.JoinPath(c.Endpoint, "v1", strings.ToLower(string(s))) // gRPC ignores the path
	if err != nil {
		return options // Validate has reported the error
	}
	return append(options, endpoint(to))
}

// flushWithin is how long a node that shuts down waits until the collector has accepted the last telemetry.
const flushWithin = 2 * time.Second

// Close sends the remaining telemetry. It waits for at most flushWithin.
func (s *Sender) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushWithin)
	defer cancel()
	errs := make([]error, len(s.stop))
	var all sync.WaitGroup
	for i, stop := range s.stop {
		all.Go(func() { errs[i] = stop(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// metricExporter is a metric exporter that logs failed exports.
type metricExporter struct {
	metric.Exporter
	outage *outage
}

func (e *metricExporter) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	return e.outage.note(ctx, e.Exporter.Export(ctx, m))
}

// spanExporter is a span exporter that logs failed exports.
type spanExporter struct {
	sdktrace.SpanExporter
	outage *outage
}

func (e *spanExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	return e.outage.note(ctx, e.SpanExporter.ExportSpans(ctx, spans))
}

func newOutage(c *Config, s signal, log *slog.Logger) *outage {
	return &outage{log: log, what: strings.ToLower(string(s)), protocol: c.protocol(s)}
}
