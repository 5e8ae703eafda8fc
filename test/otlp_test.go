package test

import (
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	dto "github.com/prometheus/client_model/go"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/test/oteltest"
)

// collectors start a collector for each protocol.
var collectors = map[string]func(testing.TB) *oteltest.Collector{"http/protobuf": oteltest.HTTP, "grpc": oteltest.GRPC}

// TestMetricsByOTLP checks that a node sends the same values as at /metrics in both protocols, including histograms.
func TestMetricsByOTLP(t *testing.T) {
	for protocol, open := range collectors {
		t.Run(protocol, func(t *testing.T) {
			c := open(t)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=s3cr3t%20token")
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
			t.Setenv("OTEL_TRACES_EXPORTER", "none")
			store := "redis://" + redistest.New(t, redistest.Options{}).Addr
			n := serve(t, "--rules", write(t, filepath.Join(t.TempDir(), "rules.yaml"), metricRules), "--store", store, "--log-level", "debug")
			reached(t, n)
			for i := range 300 {
				post(t, http.DefaultClient, n.HTTP+"/v1/check", fmt.Sprintf(`{"ip": "203.0.113.%d", "path": "/orders"}`, i%100))
			}
			scraped, _ := scrape(t, n.Admin, asProtobuf, "")
			n.stop() // a node sends its metrics once more when it stops
			if err := <-n.exited; err != nil {
				t.Fatal(err)
			}
			sent := c.Received().Metrics
			for name, family := range scraped {
				if sent[name] == nil {
					t.Errorf("%s isn't sent", name)
				} else if strings.HasPrefix(name, "weir_decisions") || strings.HasPrefix(name, "weir_shadow") || name == "weir_build_info" {
					if got, want := points(sent[name]), series(family); fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("%s is %v, and was %v at /metrics", name, got, want)
					}
				}
			}
			histogramsAgree(t, sent["weir_store_duration_seconds"], scraped["weir_store_duration_seconds"])
			if of := c.Received().Resource; of["service.name"] != "weir" || of["service.instance.id"] == "" || of["deployment.environment.name"] != "test" {
				t.Errorf("metrics are of %v", of)
			}
			if h := c.Received().Headers[0]["x-tenant"]; len(h) != 1 || h[0] != "s3cr3t token" {
				t.Errorf("the header is %q", h)
			}
			n.silent(t, "s3cr3t")
		})
	}
}

// points returns the values of counters and gauges by their labels.
func points(m *metricspb.Metric) map[string]float64 {
	out := map[string]float64{}
	for _, p := range append(m.GetSum().GetDataPoints(), m.GetGauge().GetDataPoints()...) {
		labels := oteltest.Attributes(p.Attributes)
		var names, values []string
		for name := range labels {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			values = append(values, labels[name])
		}
		out[strings.Join(values, " ")] = p.GetAsDouble()
	}
	return out
}

// histogramsAgree compares each bucket of an exponential histogram with the classic histogram of an earlier scrape.
func histogramsAgree(t *testing.T, sent *metricspb.Metric, scraped *dto.MetricFamily) {
	t.Helper()
	got, want := sent.GetExponentialHistogram().GetDataPoints(), scraped.GetMetric()[0].GetHistogram()
	if len(got) != 1 || got[0].Scale != 0 || got[0].Count < want.GetSampleCount() || want.GetSampleCount() < 10 {
		t.Fatalf("the calls to Redis are sent as %v, and were %v", got, want)
	}
	for _, b := range want.Bucket {
		exponent := math.Round(math.Log2(b.GetUpperBound()))
		if math.Abs(math.Ldexp(1, int(exponent))/b.GetUpperBound()-1) < 0.001 { // the scrape rounds bounds, and not all bounds are powers of two
			below := uint64(0)
			for i, n := range got[0].Positive.BucketCounts { // bucket i has values above 2^(offset+i), up to twice that
				if float64(int(got[0].Positive.Offset)+i+1) <= exponent {
					below += n
				}
			}
			if extra := got[0].Count - want.GetSampleCount(); below < b.GetCumulativeCount() || below > b.GetCumulativeCount()+extra {
				t.Errorf("up to %v s there are %d calls, and were %d", b.GetUpperBound(), below, b.GetCumulativeCount())
			}
		}
	}
}

// TestOTLPInTheDocs checks that nodes with the docs' variables and settings send metrics and traces.
func TestOTLPInTheDocs(t *testing.T) {
	const page = "../docs/guides/opentelemetry.md"
	var settings string
	for _, block := range append(fences(t, page, "yaml"), fences(t, "../docs/reference/cli.md", "yaml")...) {
		if _, ours, ok := strings.Cut("\n"+block, "\notlp:"); ok {
			settings = "otlp:" + ours
		}
	}
	variables := fences(t, page, "dotenv")
	if settings == "" || len(variables) != 1 {
		t.Fatalf("the docs show %q and %q", settings, variables)
	}
	const address = "http://127.0.0.1:4318"
	sends := func(c *oteltest.Collector, config string) {
		t.Helper()
		n := serve(t, "--config", write(t, filepath.Join(t.TempDir(), "weir.yaml"), config))
		post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"key": "k"}`)
		n.stop()
		if err := <-n.exited; err != nil {
			t.Fatal(err)
		}
		if c.Received().Metrics["weir_decisions_total"] == nil || len(c.Received().Spans) != 2 {
			t.Errorf("the node sends %s", c.Received().Text)
		}
	}
	c := oteltest.HTTP(t)
	sends(c, strings.NewReplacer(address, c.URL, "sample: 0.01", "sample: 1").Replace(settings))
	c = oteltest.HTTP(t)
	for line := range strings.Lines(variables[0]) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		t.Setenv(name, strings.ReplaceAll(value, address, c.URL))
	}
	sends(c, "")
	if of := c.Received().Resource; of["service.name"] != "weir-eu" || of["deployment.environment.name"] != "prod" {
		t.Errorf("the reports are from %v", of)
	}
}

// silent fails the test if a secret is in the node's log.
func (n *node) silent(t *testing.T, secret string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if text := fmt.Sprint(n.log); strings.Contains(text, secret) {
		t.Errorf("%s is in the log: %s", secret, text)
	}
}

// TestTracesByOTLP checks that a trace covers the client, the gateway, the check, Redis and the upstream.
func TestTracesByOTLP(t *testing.T) {
	for protocol, open := range collectors {
		t.Run(protocol, func(t *testing.T) {
			c := open(t)
			var mu sync.Mutex
			var arrived []http.Header
			upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				arrived = append(arrived, r.Header)
			}))
			defer upstream.Close()
			redis := redistest.New(t, redistest.Options{})
			config := write(t, filepath.Join(t.TempDir(), "weir.yaml"), fmt.Sprintf("otlp: {endpoint: %q, protocol: %s, metrics: false}\n", c.URL, protocol))
			n := serve(t, "--config", config, "--rules", write(t, filepath.Join(t.TempDir(), "rules.yaml"), metricRules),
				"--store", "redis://"+redis.Addr, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL)
			reached(t, n)
			const parent = "00f067aa0ba902b7"
			trace := func(i int) string { return fmt.Sprintf("4bf92f3577b34da6a3ce929d0e0e47%02x", i) }
			for i, flag := range []string{"01", "00", "nonsense"} {
				for _, url := range []string{n.Gateway + "/orders", n.HTTP + "/v1/check"} {
					req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(`{"path": "/orders", "ip": "203.0.113.7"}`))
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Traceparent", "00-"+trace(i)+"-"+parent+"-"+flag)
					req.Header.Set("Tracestate", "vendor=x")
					res, err := http.DefaultClient.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}
			n.stop()
			if err := <-n.exited; err != nil {
				t.Fatal(err)
			}
			byName := map[string]oteltest.Span{} // spans of the first trace
			for _, s := range c.Received().Spans {
				switch {
				case s.Trace() == trace(0):
					byName[s.Name+" "+s.Attributes["weir.edge"]] = s
				case s.Trace() == trace(1):
					t.Errorf("a trace that isn't sampled has a span: %v", s)
				case s.Trace() == trace(2):
					t.Errorf("a traceparent that can't be read is followed: %v", s)
				}
			}
			request, check, api := byName["POST "], byName["weir.check gateway"], byName["POST /v1/check "]
			if request.Span == nil || check.Span == nil || api.Span == nil {
				t.Fatalf("spans of the first trace: %v", byName)
			}
			if request.Parent() != parent || api.Parent() != parent || check.Parent() != request.ID() || byName["weir.check check"].Parent() != api.ID() {
				t.Errorf("parents are %s, %s and %s, want %s and %s", request.Parent(), api.Parent(), check.Parent(), parent, request.ID())
			}
			if a := check.Attributes; a["weir.rule"] != "orders" || a["weir.outcome"] != "allowed" || a["weir.reason"] != "within" || a["weir.rules_version"] != "1" || a["weir.degraded"] != "false" {
				t.Errorf("the check is %v", a)
			}
			if call := byName["weir.store "]; call.Span == nil || call.Attributes["weir.shard"] != redis.Addr {
				t.Errorf("the call to Redis is %v", call)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(arrived) != 2 { // the third request is over the limit
				t.Fatalf("%d requests arrived", len(arrived))
			}
			if got, want := arrived[0].Get("Traceparent"), "00-"+trace(0)+"-"+request.ID()+"-01"; got != want || arrived[0].Get("Tracestate") != "vendor=x" {
				t.Errorf("the upstream gets %s, %s, want %s", got, arrived[0].Get("Tracestate"), want)
			}
			if got := arrived[1].Get("Traceparent"); !strings.HasPrefix(got, "00-"+trace(1)+"-") || !strings.HasSuffix(got, "-00") || strings.Contains(got, parent) {
				t.Errorf("for a trace that isn't sampled, the upstream gets %s", got)
			}
		})
	}
}

// TestNoTracesUnlessAskedFor checks that without tracing, the gateway passes on the client's trace headers unchanged.
func TestNoTracesUnlessAskedFor(t *testing.T) {
	t.Parallel()
	arrived := make(chan http.Header, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { arrived <- r.Header }))
	defer upstream.Close()
	n := serve(t, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL)
	req, err := http.NewRequest(http.MethodGet, n.Gateway, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Traceparent", "of somebody")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if got := (<-arrived).Get("Traceparent"); got != "of somebody" {
		t.Errorf("the upstream gets %q", got)
	}
}

// TestCollectorAway checks that without a collector, checks go on, the log says so once for metrics and once for
// traces, and shutdown isn't delayed. If a collector's response repeats what the node sent, no secret gets into the
// log.
func TestCollectorAway(t *testing.T) {
	answer := func(status int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			key := r.Header.Get("X-Key")
			backwards := []byte(key)
			slices.Reverse(backwards)
			w.Header().Set("Retry-After", "0")
			http.Error(w, fmt.Sprintf("who is %s, %s, %s?", key, strings.ToUpper(key), backwards), status)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	var followed atomic.Int32 // number of redirected requests
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	defer elsewhere.Close()
	redirect := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1)+"/"+r.Header.Get("X-Key"), http.StatusTemporaryRedirect)
	}))
	defer redirect.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections but never responds
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=s3cr3t-token")
	t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
	for _, c := range []struct{ name, protocol, url, want string }{
		{"nobody", "grpc", "http://127.0.0.1:1", "gRPC status Unavailable"},
		{"nobody", "http/protobuf", "http://127.0.0.1:1", "connection refused"},
		{"silent", "http/protobuf", "http://" + silent.Addr().String(), "didn't answer in time"},
		{"echo", "http/protobuf", answer(401), "HTTP status 401"},
		{"busy", "http/protobuf", answer(503), "can't take any now"},
		{"no gRPC", "grpc", answer(401), "gRPC status Unavailable"},
		{"redirect", "http/protobuf", redirect.URL, "it redirects"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.url)
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", c.protocol)
			t.Setenv("OTEL_METRIC_EXPORT_TIMEOUT", "500")
			t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "500")
			n := serve(t)
			for range 20 {
				post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"key": "k"}`)
			}
			for _, of := range []string{"metrics", "traces"} {
				n.await("OTLP: the collector can't be reached, or refuses", func(l map[string]any) bool {
					return l["of"] == of && strings.Contains(fmt.Sprint(l["error"]), c.want)
				})
			}
			if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := <-n.exited; err != nil {
				t.Fatal(err)
			}
			lines := 0
			n.mu.Lock()
			for _, l := range n.log {
				if strings.HasPrefix(fmt.Sprint(l["msg"]), "OTLP") {
					lines++
				}
			}
			n.mu.Unlock()
			if lines != 2 {
				t.Errorf("%d lines about the collector, want one of metrics and one of traces", lines)
			}
			for _, secret := range []string{"s3cr3t", "S3CR3T", "t3rc3s"} {
				n.silent(t, secret)
			}
			if followed.Load() != 0 {
				t.Error("a redirect is followed, with the secret")
			}
		})
	}
}

// TestNoSecretInSpans checks that spans contain no secrets, whatever clients send on any port.
func TestNoSecretInSpans(t *testing.T) {
	const secret = "s3cr3t"
	c := oteltest.HTTP(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	upstream := httptest.NewServer(http.NotFoundHandler())
	defer upstream.Close()
	server := redistest.New(t, redistest.Options{Password: secret})
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), `
rules: [{id: all, by: [api_key, ip, path, "header:X-Tenant"], limit: 2/hour}]
blacklist: [`+secret+`-denied]
`)
	n := serve(t, "--rules", rules, "--store", "redis://:"+secret+"@"+server.Addr, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL, "--http-token", secret+"-of-the-check-api")
	reached(t, n)
	send := func() {
		for _, key := range []string{secret, secret, secret, secret + "-denied", secret + strings.Repeat("x", 500)} {
			for _, url := range []string{n.HTTP + "/v1/check", n.HTTP + "/v1/checks", n.HTTP + "/v1/take", n.HTTP + "/v1/" + secret, n.Gateway + "/" + secret + "?q=" + secret} {
				body := fmt.Sprintf(`{"key": %q, "path": "/%s", "ip": "203.0.113.7", "attributes": {"user": %[1]q, "header:X-Tenant": %[1]q}}`, key, secret)
				switch {
				case strings.HasSuffix(url, "checks"):
					body = `{"checks": [` + body + `]}`
				case strings.HasSuffix(url, "take"):
					body = fmt.Sprintf(`{"key": %q, "limit": "1/hour"}`, key)
				}
				req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("X-Api-Key", key)
				req.Header.Set("X-Tenant", key)
				req.Header.Set("User-Agent", key)
				req.Header.Set("Baggage", "key="+key)
				req.Header.Set("Authorization", "Bearer "+secret+"-of-the-check-api")
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
			}
		}
	}
	send()
	server.Kill() // so that the spans include failures
	send()
	n.stop()
	if err := <-n.exited; err != nil {
		t.Fatal(err)
	}
	edges := map[string]int{}
	for _, s := range c.Received().Spans {
		edges[s.Attributes["weir.edge"]]++
	}
	if edges["check"] < 20 || edges["gateway"] < 8 {
		t.Errorf("spans of the edges: %v", edges)
	}
	if text := c.Received().Text; strings.Contains(text, secret) || strings.Contains(text, "203.0.113.7") {
		i := max(0, strings.Index(text, secret)-300)
		t.Errorf("a secret or an address is sent: …%s…", text[i:min(len(text), i+600)])
	}
	n.silent(t, secret)
}

// TestMistakesInOTLP checks that error messages about OTLP settings say what to write, without secrets.
func TestMistakesInOTLP(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4318")
	if out := answerTo(t, t.TempDir(), []string{"serve"}, nil); !strings.Contains(out, "weir: OTEL_EXPORTER_OTLP_ENDPOINT: must be a URL") {
		t.Errorf("weir serve says: %s", out)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	for yaml, want := range map[string]string{
		"otlp: {endpoint: \"127.0.0.1:4318\"}":      "weir.yaml:1:18: otlp.endpoint: must be a URL such as http://127.0.0.1:4318",
		"otlp:\n  protocol: http":                   "weir.yaml:2:13: otlp.protocol: must be grpc or http/protobuf",
		"otlp:\n  interval: 60ms":                   "weir.yaml:2:13: otlp.interval: must be at least 1s, such as 60s",
		"otlp:\n  interval: soon":                   "weir.yaml:2:13: otlp.interval: must be a time with its unit, such as 60s",
		"otlp:\n  sample: 50":                       "weir.yaml:2:11: otlp.sample: must be a share from 0 to 1",
		"otlp:\n  traces: perhaps":                  "weir.yaml:2:11: otlp.traces: must be true or false",
		"otlp:\n  endpint: http://127.0.0.1:4318":   `did you mean "endpoint"?`,
		"otlp:\n  headers: {authorization: s3cr3t}": "OTEL_EXPORTER_OTLP_HEADERS",
		"otlp: http://127.0.0.1:4318":               "must be a map of endpoint, interval",
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "weir.yaml"), yaml)
		if out := answerTo(t, dir, []string{"serve"}, nil); !strings.Contains(out, want) || strings.Contains(out, "s3cr3t") {
			t.Errorf("%s\nweir serve says: %s\nwant %s", yaml, out, want)
		}
	}
}
