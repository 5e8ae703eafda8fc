package test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/httplimit"
	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/memstore"
	"github.com/weirhq/weir/metrics"
)

// scrape requests metrics like Prometheus, and returns them both parsed and as text.
func scrape(t *testing.T, url, accept, token string) (map[string]*dto.MetricFamily, string) {
	t.Helper()
	res, body := call(t, "GET", url+"/metrics", "", "Accept: "+accept, bearer(token))
	if res.StatusCode != 200 {
		t.Fatalf("%s: %s", res.Status, body)
	}
	all := map[string]*dto.MetricFamily{}
	for dec := expfmt.NewDecoder(strings.NewReader(body), expfmt.ResponseFormat(res.Header)); ; {
		f := new(dto.MetricFamily)
		if err := dec.Decode(f); errors.Is(err, io.EOF) {
			return all, body
		} else if err != nil {
			t.Fatalf("%v in:\n%s", err, body)
		}
		all[f.GetName()] = f
	}
}

const (
	asText     = "text/plain; version=0.0.4"
	asProtobuf = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)

// series returns the values of one metric by the values of their labels, ordered by the labels' names.
func series(f *dto.MetricFamily) map[string]float64 {
	out := map[string]float64{}
	for _, m := range f.GetMetric() {
		var labels []string
		for _, l := range m.Label {
			labels = append(labels, l.GetValue())
		}
		out[strings.Join(labels, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return out
}

const metricRules = `
rules:
  - {id: orders, match: {endpoint: /orders}, by: [ip], limit: 2/hour, candidate: {limit: 1/hour}}
  - {id: trial, match: {endpoint: /orders}, by: [ip], limit: 1/hour, shadow: true}
`

// TestMetricsOfANode checks the metrics of every edge in both formats, including decisions that aren't enforced.
func TestMetricsOfANode(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.NotFoundHandler())
	defer upstream.Close()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), metricRules)
	store := "redis://" + redistest.New(t, redistest.Options{}).Addr
	n := serve(t, "--rules", rules, "--store", store, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL)
	reached(t, n)
	for i := range 3 {
		post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"ip": "203.0.113.7", "path": "/orders"}`)
		post(t, http.DefaultClient, n.HTTP+"/v1/checks", fmt.Sprintf(`{"checks": [{"key": "%d", "path": "/free"}]}`, i))
		post(t, http.DefaultClient, n.HTTP+"/v1/take", `{"key": "a", "limit": "1/hour"}`)
		post(t, http.DefaultClient, n.Gateway+"/orders", "")
	}
	all, text := scrape(t, n.Admin, asText, "")
	want := map[string]float64{
		"check allowed within orders": 2, "check refused limited orders": 1,
		"gateway allowed within orders": 2, "gateway refused limited orders": 1,
		"check allowed within take": 1, "check refused limited take": 2,
		"check allowed unlimited ": 3,
	}
	if got := series(all["weir_decisions_total"]); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("decisions: %v, want %v", got, want)
	}
	if got := fmt.Sprint(series(all["weir_shadow_refusals_total"])); got != "map[candidate orders:4 shadow trial:4]" {
		t.Errorf("refusals that weren't enforced: %s", got)
	}
	for _, name := range []string{
		"weir_near_limit_total", "weir_store_up", "weir_store_errors_total", "weir_store_acts_per_call", "weir_store_duration_seconds",
		"weir_lease_charges_total", "weir_lease_tokens", "weir_lease_counters", "weir_rules_version", "weir_rules_age_seconds",
		"weir_rules_rejected_total", "weir_nodes", "weir_clock_drift_seconds",
		"weir_memory_counters", "weir_memory_bytes", "weir_memory_evictions_total", "weir_build_info", "go_goroutines",
	} {
		if all[name] == nil {
			t.Errorf("%s is missing in:\n%s", name, text)
		}
	}
	if all["weir_rules_refresh_failures_in_a_row"] != nil {
		t.Error("rules in a file have failures of a rule store")
	}
	all, _ = scrape(t, n.Admin, asProtobuf, "")
	h := all["weir_store_duration_seconds"].GetMetric()[0].GetHistogram()
	if h.GetSampleCount() == 0 || len(h.GetBucket()) == 0 || len(h.GetPositiveSpan()) == 0 {
		t.Errorf("calls to Redis must be a histogram that is classic and native: %v", h)
	}
}

// TestMetricsNeedAToken checks that metrics need a token, like everything else that can be read on the admin port.
func TestMetricsNeedAToken(t *testing.T) {
	t.Parallel()
	n := serve(t, "--admin-token", "an-admin-token-of-some-length")
	res, err := http.Get(n.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %s", res.Status)
	}
	if _, text := scrape(t, n.Admin, asText, "an-admin-token-of-some-length"); strings.Contains(text, "an-admin-token") {
		t.Error("the token is in the metrics")
	}
}

// TestNoSecretInMetrics checks that metrics contain no secrets, whatever clients send and however the node is
// configured.
func TestNoSecretInMetrics(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	hostile := []string{secret, secret + "\"} 1\nweir_up{x=\"", secret + "\xff\xfe", secret + strings.Repeat("x", 1000), "/" + secret + "/{id}", secret + "\u2028="}

	upstream := httptest.NewServer(http.NotFoundHandler())
	defer upstream.Close()
	server := redistest.New(t, redistest.Options{Password: secret})
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), `
rules:
  - {id: all, by: [api_key, user, org, path, "header:X-Tenant"], limit: 1/hour}
  - {id: mine, match: {endpoint: /mine}, by: [user], missing: refuse, limit: 1/hour}
blacklist: [`+secret+`]
`)
	n := serve(t, "--rules", rules, "--store", "redis://:"+secret+"@"+server.Addr, "--admin-token", secret+"-of-the-admin-port",
		"--http-token", secret+"-of-the-check-api", "--gateway", "127.0.0.1:0", "--upstream", upstream.URL)

	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	set, err := weir.Compile(weir.Rules{Rules: []weir.Rule{{ID: "all", Limits: []weir.Limit{weir.PerHour(1)}}}})
	if err != nil {
		t.Fatal(err)
	}
	limiter := weir.NewLimiter(memstore.New(memstore.Options{}), set, weir.Options{Observe: m.Observe})
	own := httptest.NewServer(httplimit.New(limiter, httplimit.Options{}).Wrap(http.NotFoundHandler()))
	defer own.Close()
	embedded := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer embedded.Close()

	for _, v := range slices.Repeat(hostile, 2) {
		body, err := json.Marshal(map[string]any{
			"key": v, "method": v, "path": "/" + v, "attributes": map[string]string{"user": v, "org": v, "tier": v, "header:X-Tenant": v},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, url := range []string{n.HTTP + "/v1/check", n.HTTP + "/v1/take", n.Gateway + "/mine", n.Gateway + "/" + secret, own.URL + "/" + secret} {
			req, err := http.NewRequest("POST", url, strings.NewReader(string(body)))
			if err != nil {
				t.Fatal(err)
			}
			clean := strings.ToValidUTF8(strings.ReplaceAll(v, "\n", ""), "") // the text that net/http sends
			req.Header.Set("X-Api-Key", clean)
			req.Header.Set("X-Tenant", clean)
			req.Header.Set("Authorization", "Bearer "+secret+"-of-the-check-api")
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
		}
	}
	for edge, at := range map[string]string{"check": n.Admin, "gateway": n.Admin, "http": embedded.URL} {
		all, text := scrape(t, at, asText, secret+"-of-the-admin-port")
		if strings.Contains(text, secret) || strings.Contains(text, "weir_up") {
			t.Errorf("%s: a secret is in the metrics:\n%s", edge, text)
		}
		if !strings.Contains(text, `edge="`+edge+`"`) {
			t.Errorf("no decision of the edge %s in:\n%s", edge, text)
		}
		for name := range all {
			if !model.LegacyValidation.IsValidMetricName(name) {
				t.Errorf("a metric is named %q", name)
			}
		}
	}
}

// TestMetricsOfRules checks the metrics of rejected rules and of a lost rule store.
func TestMetricsOfRules(t *testing.T) {
	t.Parallel()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), metricRules)
	n := serve(t, "--rules", rules)
	write(t, rules, "rules: [{id: x, limit: 0/s}]")
	n.await("rules rejected: the ones in force stay", func(map[string]any) bool { return true })
	all, _ := scrape(t, n.Admin, asText, "")
	if got := series(all["weir_rules_rejected_total"])[""]; got != 1 {
		t.Errorf("%v rules were rejected, want 1", got)
	}
	if got := series(all["weir_rules_version"])[""]; got != 1 {
		t.Errorf("version %v is in force, want 1", got)
	}
	hash := fmt.Sprintf("%.4x", sha256.Sum256([]byte(metricRules)))
	if got := series(all["weir_rules_info"]); len(got) != 1 || got[hash] != 1 {
		t.Errorf("rules: %v, want those of the hash %s", got, hash)
	}

	text, err := exec.Command(binary, "nodes", "--admin", n.Admin).Output()
	if err != nil || !strings.Contains(string(text), "  "+hash+"  ") {
		t.Errorf("%v: %s doesn't have the hash %s", err, text, hash)
	}
	for of := range series(all["weir_build_info"]) {
		if name := strings.Fields(of)[1]; !strings.Contains(string(text), name) {
			t.Errorf("%s doesn't name the node of %s", text, of)
		}
	}

	server := redistest.New(t, redistest.Options{})
	n = serve(t, "--store", "redis://"+server.Addr)
	reached(t, n)
	server.Kill()
	until(t, func() error {
		all, _ := scrape(t, n.Admin, asText, "")
		if failures, up := series(all["weir_rules_refresh_failures_in_a_row"])[""], series(all["weir_store_up"])[server.Addr]; failures < 3 || up != 0 {
			return fmt.Errorf("after Redis was killed, the rule store failed %v times in a row, and weir_store_up is %v", failures, up)
		}
		return nil
	})
}
