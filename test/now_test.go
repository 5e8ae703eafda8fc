package test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	adminapi "github.com/weirhq/weir/server/internal/admin"
)

// nowOf returns a node's GET /v1/now.
func nowOf(t testing.TB, n *node) (now adminapi.Now) {
	t.Helper()
	res, text := call(t, "GET", n.Admin+"/v1/now", "")
	if err := json.Unmarshal([]byte(text), &now); err != nil || res.StatusCode != 200 {
		t.Fatalf("%s, %v: %s", res.Status, err, text)
	}
	return now
}

// documented checks a response against docs/reference/openapi.yaml.
func documented(t testing.TB, path, text string) {
	t.Helper()
	doc := contractIn(t, "openapi.yaml")
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	schema := doc.Paths.Value(path).Get.Responses.Status(200).Value.Content["application/json"].Schema.Value
	if err := schema.VisitJSON(v); err != nil {
		t.Errorf("%s isn't as documented: %v\n%s", path, err, text)
	}
}

func total(all []uint64) (sum float64) {
	for _, n := range all {
		sum += float64(n)
	}
	return sum
}

func trouble(now *adminapi.Now, what string) *adminapi.Trouble {
	for i := range now.Trouble {
		if now.Trouble[i].What == what {
			return &now.Trouble[i]
		}
	}
	return nil
}

const nowRules = `
rules:
  - {id: orders, match: {endpoint: /orders}, limit: 50/hour}
  - {id: login, match: {endpoint: /login}, by: [ip], limit: 1000/hour, on_store_failure: refuse}
  - {id: share, by: [ip], limit: 100000/hour, on_store_failure: local}
  - {id: trial, by: [ip], limit: 1/hour, shadow: true, on_store_failure: refuse}
`

// The figures of GET /v1/now match the node's metrics, under load and while Redis is lost.
func TestNowAgreesWithMetrics(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), nowRules)
	n := serve(t, "--rules", rules, "--store", "redis://"+r.Addr, "--store-timeout", "1s")
	reached(t, n)
	began := time.Now()
	load := func(each int) {
		var sending sync.WaitGroup
		for i := range 4 {
			sending.Go(func() {
				for j := range each {
					post(t, http.DefaultClient, n.HTTP+"/v1/check", fmt.Sprintf(`{"key": "k%d", "path": "/orders", "ip": "203.0.113.7"}`, i))
					post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"path": "/login", "ip": "203.0.113.7"}`)
					if j%10 == 0 {
						post(t, http.DefaultClient, n.HTTP+"/v1/checks", `{"checks": [{"key": "b", "path": "/orders"}, {"key": "b", "path": "/other"}]}`)
						nowOf(t, n)
					}
				}
			})
		}
		sending.Wait()
	}
	agrees := func() (now adminapi.Now) {
		t.Helper()
		until(t, func() error { // until the figures include the last second
			now = nowOf(t, n)
			all, _ := scrape(t, n.Admin, asText, "")
			want := map[string]float64{}
			for labels, v := range series(all["weir_decisions_total"]) {
				want["decisions"] += v
				if strings.Contains(labels, " refused ") {
					want["refused"] += v
				}
			}
			want["degraded"] = series(all["weir_degraded_decisions_total"])[""]
			got := map[string]float64{"decisions": total(now.Series.Decisions), "refused": total(now.Series.Refused), "degraded": total(now.Series.Degraded)}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("now has %v, the metrics have %v", got, want)
			}
			return nil
		})
		return now
	}
	load(60)
	now := agrees()
	if time.Since(began) < 9*time.Second { // the whole load is within the last ten seconds
		decisions, refused := now.Totals.Decisions*now.Totals.Over, now.Totals.ByEdge["check"].Refused*now.Totals.Over
		if math.Abs(decisions-total(now.Series.Decisions)) > 0.5 || math.Abs(refused-total(now.Series.Refused)) > 0.5 {
			t.Errorf("%+v for %v decisions", now.Totals, total(now.Series.Decisions))
		}
	}
	if total(now.Series.Refused) < 4*(60-50) || now.Latency.Measured == 0 || *now.Latency.P50 > *now.Latency.P99 || now.Lease == nil || now.Lease.Counters == 0 {
		t.Errorf("%+v", now)
	}
	if sh := now.Store.Shards; len(sh) != 1 || !sh[0].Up || sh[0].Breaker != "closed" || sh[0].P50 == nil || len(now.Trouble) != 0 {
		t.Errorf("%+v, %+v", now.Store, now.Trouble)
	}
	if got := fmt.Sprint(now.FailureModes); got != "[{login refuse answers 503} {share local counts on each node alone, to the limit divided by the nodes} {orders allow counts clients that a node knows on each node alone, and admits the others} {trial allow is in shadow, and refuses nobody}]" {
		t.Error(got)
	}
	r.Kill()
	until(t, func() error {
		if now = nowOf(t, n); trouble(&now, "store_lost") == nil {
			return fmt.Errorf("no trouble: %+v", now)
		}
		return nil
	})
	load(10)
	now = agrees()
	lost := trouble(&now, "store_lost")
	if lost == nil || !strings.HasSuffix(lost.Text, "of the rules, 1 refuses with 503, 1 counts on each node alone, 1 admits clients that a node doesn't know") || lost.Since.Before(began) || lost.Since.After(time.Now()) {
		t.Errorf("%+v", lost)
	}
	if sh := now.Store.Shards; now.Store.Status != "degraded" || sh[0].Up || sh[0].Breaker != "open" || sh[0].Error == "" || !sh[0].Since.Equal(lost.Since) {
		t.Errorf("%+v", now.Store)
	}
	if total(now.Series.Degraded) < 4*20 {
		t.Errorf("%v decisions were made without Redis", total(now.Series.Degraded))
	}
	_, text := call(t, "GET", n.Admin+"/v1/now", "")
	documented(t, "/v1/now", text)
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, func() error {
		if now = nowOf(t, n); len(now.Trouble) > 0 || now.Store.Shards[0].Breaker != "closed" {
			return fmt.Errorf("%+v, %+v", now.Trouble, now.Store)
		}
		return nil
	})
}

// Other nodes report a killed node as missing, but not a node that was stopped. They also report rejected rules.
func TestTroubleWithNodesAndRules(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), nowRules)
	n := serve(t, "--rules", rules, "--store", "redis://"+r.Addr)
	killed, ended := serve(t, "--store", "redis://"+r.Addr), serve(t, "--store", "redis://"+r.Addr)
	name, leaver := nowOf(t, killed).Node, nowOf(t, ended).Node
	until(t, func() error {
		if _, text := call(t, "GET", n.Admin+"/v1/nodes", ""); !strings.Contains(text, name) || !strings.Contains(text, leaver) {
			return fmt.Errorf("%s isn't known: %s", name, text)
		}
		return nil
	})
	ended.stop()
	crash(killed)
	write(t, rules, "rules: [{id: x, limit: 0/s}]")
	var now adminapi.Now
	until(t, func() error {
		now = nowOf(t, n)
		if stale := trouble(&now, "node_stale"); stale == nil || !strings.Contains(stale.Text, name) {
			return fmt.Errorf("%s isn't missed: %+v", name, now.Trouble)
		}
		return nil
	})
	until(t, func() error { // the report stays after Redis has forgotten the node
		if _, text := call(t, "GET", n.Admin+"/v1/nodes", ""); strings.Contains(text, name) {
			return fmt.Errorf("%s is still known: %s", name, text)
		}
		now = nowOf(t, n)
		return nil
	})
	stale, rejected := trouble(&now, "node_stale"), trouble(&now, "rules_rejected")
	if stale == nil || !strings.Contains(stale.Text, name) || strings.Contains(stale.Text, leaver) {
		t.Errorf("%+v", stale)
	}
	if rejected == nil || !strings.Contains(rejected.Text, "version 1 stays in force") || !strings.Contains(rejected.Text, "rules.yaml:1") {
		t.Errorf("%+v", rejected)
	}
}
