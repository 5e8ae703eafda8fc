package otlp

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMistakesInVariables checks that an error about a variable says what to write, and contains no secret.
func TestMistakesInVariables(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "did you mean http://collector:4317?"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://joe:s3cr3t@127.0.0.1:4318", "OTEL_EXPORTER_OTLP_HEADERS"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "http", "must be grpc or http/protobuf"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "s3cr3t", "must be name=value"},
		{"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=b,s3cr3t blank=1", "number 2 isn't"},
		{"OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "10s", "milliseconds"},
		{"OTEL_EXPORTER_OTLP_INSECURE", "yes", "true or false"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", "nowhere.pem", "no such file"},
		{"OTEL_METRIC_EXPORT_INTERVAL", "1m", "milliseconds"},
		{"OTEL_METRICS_EXPORTER", "prometheus", "must be otlp or none"},
		{"OTEL_TRACES_SAMPLER", "some", "must be always_on or"},
		{"OTEL_RESOURCE_ATTRIBUTES", "nonsense", "must be name=value"},
	} {
		t.Run(c.name+" "+c.value, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			t.Setenv(c.name, c.value)
			var config Config
			err := config.Validate()
			if err == nil {
				_, err = Start(t.Context(), config, Node{}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
			}
			if err == nil || !strings.HasPrefix(err.Error(), c.name+": ") || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// TestWhatIsSent checks which settings turn on metrics and traces.
func TestWhatIsSent(t *testing.T) {
	no := false
	for _, c := range []struct {
		file            Config
		env             []string
		metrics, traces bool
	}{
		{},
		{file: Config{Endpoint: "http://a"}, metrics: true, traces: true},
		{file: Config{Endpoint: "http://a", Traces: &no}, metrics: true},
		{file: Config{Traces: &no}, env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a"}, metrics: true},
		{env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a"}, metrics: true, traces: true},
		{env: []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a"}, traces: true},
		{env: []string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://a"}, metrics: true},
		{env: []string{"OTEL_TRACES_EXPORTER", "otlp"}, traces: true},
		{file: Config{Endpoint: "http://a"}, env: []string{"OTEL_METRICS_EXPORTER", "none"}, traces: true},
		{file: Config{Endpoint: "http://a"}, env: []string{"OTEL_SDK_DISABLED", "true"}},
	} {
		t.Run("", func(t *testing.T) {
			if c.env != nil {
				t.Setenv(c.env[0], c.env[1])
			}
			if c.file.sends(metrics) != c.metrics || c.file.sends(traces) != c.traces {
				t.Errorf("%+v and %v send metrics: %v, traces: %v", c.file, c.env, c.file.sends(metrics), c.file.sends(traces))
			}
		})
	}
}

// TestTargets checks that a variable takes precedence over weir.yaml.
func TestTargets(t *testing.T) {
	c := Config{Endpoint: "http://127.0.0.1:4318/otlp/", Protocol: "grpc"}
	to := func(s signal) string { return strings.Join(target(&c, s, func(url string) string { return url }), " ") }
	if got := to(traces); got != "http://127.0.0.1:4318/otlp/v1/traces" || c.protocol(traces) != "grpc" {
		t.Errorf("traces go to %s", got)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://127.0.0.2:4318")
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf")
	if to(metrics) != "" || c.protocol(metrics) != "http/protobuf" || c.protocol(traces) != "grpc" {
		t.Error("a variable doesn't come before weir.yaml")
	}
}

// TestTracesAreBounded checks that the number of traces per second is bounded, also for traces that clients ask for.
func TestTracesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := (&Config{}).sampler()
		client := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true,
		}))
		for what, ctx := range map[string]context.Context{"no trace": context.Background(), "a client's trace": client} {
			taken := 0
			for range 3 * tracesPerSecond {
				if s.ShouldSample(sdktrace.SamplingParameters{ParentContext: ctx}).Decision == sdktrace.RecordAndSample {
					taken++
				}
			}
			if taken != tracesPerSecond {
				t.Errorf("with %s, %d traces at once, want %d", what, taken, tracesPerSecond)
			}
		}
		time.Sleep(time.Second)
		if s.ShouldSample(sdktrace.SamplingParameters{ParentContext: client}).Decision != sdktrace.RecordAndSample {
			t.Error("no trace a second later")
		}
	})
	none := 0.0
	if (&Config{Sample: &none}).sampler().ShouldSample(sdktrace.SamplingParameters{ParentContext: context.Background()}).Decision == sdktrace.RecordAndSample {
		t.Error("a share of 0 is traced")
	}
}

// TestOutagesAreLoggedOnceAMinute checks that an outage is logged once a minute, and its end once.
func TestOutagesAreLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		o := newOutage(&Config{}, traces, slog.New(slog.NewTextHandler(&text, nil)))
		for range 90 {
			o.note(t.Context(), errors.New("who is Bearer s3cr3t? "+strings.Repeat("x", 10_000)))
			time.Sleep(time.Second)
		}
		o.note(t.Context(), nil)
		o.note(t.Context(), nil)
		o.note(t.Context(), context.Canceled)
		got := text.String()
		if strings.Count(got, "can't be reached") != 2 || strings.Count(got, "is back") != 1 || strings.Contains(got, "s3cr3t") || len(got) > 2000 {
			t.Errorf("the log says: %s", got)
		}
	})
}
