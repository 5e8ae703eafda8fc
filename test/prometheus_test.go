package test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

const scrapeToken = "a-token-for-whoever-scrapes"

// scraper is a running Prometheus with the configuration in deploy.
type scraper struct {
	t   *testing.T
	url string
}

// startPrometheus starts a Prometheus that scrapes the nodes five times a second. Its alerts fire without waiting;
// alerts_test.yaml tests how long they wait.
func startPrometheus(t *testing.T, nodes ...*node) *scraper {
	t.Helper()
	addr, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	pairs := []string{": 5s", ": 200ms", "/run/secrets/weir_token", write(t, filepath.Join(dir, "token"), scrapeToken)}
	for i, n := range nodes {
		pairs = append(pairs, fmt.Sprintf("weir-%d:8082", i+1), strings.TrimPrefix(n.Admin, "http://"))
	}
	config := write(t, filepath.Join(dir, "prometheus.yaml"), strings.NewReplacer(pairs...).Replace(read(t, deploy+"prometheus/prometheus.yaml")))
	write(t, filepath.Join(dir, "alerts.yaml"), regexp.MustCompile(`(?m)^ +for: .*\n`).ReplaceAllString(read(t, deploy+"prometheus/alerts.yaml"), ""))
	if out, err := exec.CommandContext(t.Context(), prometheusTool(t, "promtool"), "check", "config", config).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(prometheusTool(t, "prometheus"), "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr,
		"--scrape.discovery-reload-interval=100ms") // otherwise the first scrape is five seconds later
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if t.Failed() {
			t.Log(read(t, log.Name()))
		}
	})
	p := &scraper{t, "http://" + addr}
	until(t, func() error {
		res, err := http.Get(p.url + "/-/ready")
		if err != nil {
			return err
		}
		res.Body.Close()
		if res.StatusCode != 200 {
			return fmt.Errorf("Prometheus: %s", res.Status)
		}
		return nil
	})
	return p
}

// query returns how many series with numeric values an expression has.
func (p *scraper) query(expr string) (numbers int, err error) {
	res, err := http.Get(p.url + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var body struct {
		Error string
		Data  struct{ Result []struct{ Value [2]any } }
	}
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil || res.StatusCode != 200 {
		p.t.Fatalf("%s: %s %s %v", expr, res.Status, body.Error, err)
	}
	for _, r := range body.Data.Result {
		if v, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64); err == nil && !math.IsNaN(v) {
			numbers++
		}
	}
	return numbers, nil
}

// has waits until an expression has data.
func (p *scraper) has(what, expr string) {
	p.t.Helper()
	until(p.t, func() error {
		if n, err := p.query(expr); err != nil || n == 0 {
			return fmt.Errorf("%s has no data: %s %v", what, expr, err)
		}
		return nil
	})
}

const deployRules = `
rules:
  - {id: orders, match: {endpoint: /orders}, by: [ip], limit: 20/hour, candidate: {limit: 10/hour}}
  - {id: trial, match: {endpoint: /orders}, by: [ip], limit: 10/hour, shadow: true}
  - {id: busy, match: {endpoint: /busy}, by: [ip], limit: 1000000/minute}
  - {id: queue, match: {endpoint: /queue}, by: [ip], algorithm: leaky_bucket, mode: queue, burst: 100, limit: 1/minute, max_delay: 1h}
`

// Every query of the dashboard and the alerts returns data in a Prometheus that scrapes real nodes, and every metric
// that they use exists. Then parts fail one by one, and the alerts fire.
func TestDashboardAndAlertsOnARealPrometheus(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	dir := t.TempDir()
	rules := write(t, filepath.Join(dir, "rules.yaml"), deployRules)
	secret := write(t, filepath.Join(dir, "secret"), strings.Repeat("x", 32))
	config := write(t, filepath.Join(dir, "weir.yaml"), "regions: {name: eu, home: us, secret_file: "+secret+", peers: {us: [127.0.0.1:1]}}") // there is no such peer
	first := serve(t, "--config", config, "--seed-rules", rules, "--store", "redis://"+server.Addr, "--admin-token", scrapeToken,
		"--gateway", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--max-waiting", "2",
		"--decision-log", filepath.Join(dir, "decisions.log"))
	file := serve(t, "--rules", rules, "--admin-token", scrapeToken)
	gone := serve(t, "--admin-token", scrapeToken)
	p := startPrometheus(t, first, file, gone)

	// Wait for a first scrape before the traffic begins. The series below don't exist until then, so Prometheus sees each one
	// from its start.
	p.has("the node", `weir_build_info{instance="127.0.0.1:8201"}`)
	traffic(t, first)
	for what, expr := range queries(t) {
		p.has(what, expr)
	}
	comparison := regexp.MustCompile(`\s*(?:[<>]=?|[!=]=)\s*[\d.]+\s*$`)
	var exprs strings.Builder
	for _, a := range alerts(t) {
		for _, part := range regexp.MustCompile(`\nand\s`).Split(a.Expr, -1) {
			without := comparison.ReplaceAllString(part, "")
			if without == part {
				t.Errorf("%s compares nothing: %s", a.Alert, part)
			}
			p.has(a.Alert, without)
		}
		fmt.Fprintln(&exprs, a.Expr)
	}

	// An expression with several metrics may hide that one of them is missing.
	for _, q := range queries(t) {
		fmt.Fprintln(&exprs, q)
	}
	scraped, text := scrape(t, first.Admin, asText, scrapeToken)
	for _, selector := range regexp.MustCompile(`\b(?:weir|process)_\w+(?:\{[^}]*\})?`).FindAllString(exprs.String(), -1) {
		p.has("the selector", selector)
		name, _, _ := strings.Cut(selector, "{")
		if family := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, ""); scraped[name] == nil && scraped[family] == nil {
			t.Errorf("%s isn't in /metrics:\n%s", name, text)
		}
	}
	page := read(t, "../docs/reference/metrics.md")
	for name := range scraped {
		if strings.HasPrefix(name, "weir_") && !strings.Contains(page, "`"+name) {
			t.Errorf("docs/reference/metrics.md lacks %s", name)
		}
	}

	firing := func(alert string) {
		t.Helper()
		p.has(alert, fmt.Sprintf(`ALERTS{alertname=%q, alertstate="firing"}`, alert))
	}
	for _, alert := range []string{"WeirFailOpen", "WeirStoreDown", "WeirRulesNotRefreshed", "WeirRulesRejected", "WeirNodeDown", "WeirNoRules", "WeirClockDrift", "WeirHomeMoved"} {
		if n, err := p.query(fmt.Sprintf(`ALERTS{alertname=%q}`, alert)); err != nil || n > 0 {
			t.Errorf("%s fires, and nothing is wrong: %v", alert, err)
		}
	}
	firing("WeirRefusals")
	firing("WeirOverloaded")
	firing("WeirRulesDiffer") // the third node has the starter rules
	firing("WeirRegionSilent")
	if status, text := admin(t, first, "POST", "/v1/regions", `{"do": "move", "region": "us", "to": "eu", "force": true}`, bearer(scrapeToken)); status != 200 {
		t.Fatalf("%d: %s", status, text)
	}
	firing("WeirHomeMoved")
	server.Kill()
	write(t, rules, "rules: [{id: x, limit: 0/s}]")
	gone.stop()
	for _, alert := range []string{"WeirFailOpen", "WeirStoreDown", "WeirRulesNotRefreshed", "WeirRulesRejected", "WeirNodeDown"} {
		firing(alert)
	}
}

// traffic sends requests of all kinds to a node until the test ends.
func traffic(t *testing.T, n *node) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	send := func(method, url, body string, keys ...string) {
		req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header["X-Api-Key"] = keys
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			res.Body.Close()
		} else if ctx.Err() == nil {
			t.Error(err)
		}
	}
	// One decision in 64 is timed, so this batch has more than that.
	checks := `{"checks": [` + strings.Repeat(`{"ip": "203.0.113.7", "path": "/busy"}, {"ip": "203.0.113.7", "path": "/orders"}, `, 25) + `{"path": "/free"}]}`
	every := time.NewTicker(20 * time.Millisecond)
	wg.Go(func() {
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
				send("POST", n.HTTP+"/v1/checks", checks)
				// Each request is from a new client, which the node admits without counting while Redis is lost.
				send("POST", n.HTTP+"/v1/check", fmt.Sprintf(`{"ip": "10.%d.%d.%d", "path": "/orders"}`, rand.IntN(256), rand.IntN(256), rand.IntN(256)))
				send("GET", n.Gateway+"/free", "", "sk_1", "sk_2") // one key too many
				// The first request is forwarded, the second waits, and more don't fit in the queue.
				wg.Go(func() { send("GET", n.Gateway+"/queue", "") })
			}
		}
	})
}
