package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/weirhq/weir/server/internal/observe/budget"
)

// sharedLog is a log with concurrent writers.
type sharedLog struct {
	draining chan struct{} // closed when the node drains
	mu       sync.Mutex    // guards text
	text     bytes.Buffer
}

func (l *sharedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if bytes.Contains(p, []byte("msg=draining")) {
		close(l.draining)
	}
	return l.text.Write(p)
}

func (l *sharedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const budgetRules = `rules:
  - {id: spend, amount: usd, algorithm: fixed_window, limit: 10.5/month}
  - {id: flight, algorithm: concurrency, limit: 5, slot_ttl: 1h}
`

// A node reports a budget that runs low in its log, to a webhook, in its counters and in its metrics. Stopping the node
// loses no event.
func TestANodeReportsBudgets(t *testing.T) {
	others := goleak.IgnoreCurrent()
	defer func() { goleak.VerifyNone(t, others) }() // the watcher's goroutines end with the node
	const key, token = "sk_prod_0123456789abcdefghijkl", "token-0123456789"
	events, log := make(chan budget.Event, 10), &sharedLog{draining: make(chan struct{})}
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Authorization") != "Bearer "+token || strings.Contains(string(body), key) {
			t.Errorf("the webhook got %s, %v, %v", body, r.Header, err)
		}
		<-log.draining // no check waits for the webhook; an event that is delayed for too long is dropped
		var e budget.Event
		if err := json.Unmarshal(body, &e); err != nil {
			t.Error(err)
		}
		events <- e
	}))
	defer hook.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := Config{
		Rules: writeFile(t, "rules.yaml", budgetRules), HTTP: "127.0.0.1:0", GRPC: "127.0.0.1:0", Admin: "127.0.0.1:0",
		BudgetWebhook: hook.URL + "/hunter2", BudgetWebhookTokenFile: writeFile(t, "token", token+"\n"),
	}
	ready, ended := make(chan Listening, 1), make(chan error, 1)
	go func() {
		ended <- Run(ctx, c, "test", slog.New(slog.NewTextHandler(log, nil)), func(l Listening) { ready <- l })
	}()
	var at Listening
	select {
	case at = <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(addr, path, body string) string {
		t.Helper()
		method := http.MethodPost
		if body == "" {
			method = http.MethodGet
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %s %v", path, res.Status, text, err)
		}
		return string(text)
	}
	check := func(more string) string {
		return ask(at.HTTP.String(), "/v1/check", `{"key": "`+key+`", "path": "/"`+more+`}`)
	}
	for range 17 { // one request, repeated
		check(`, "amounts": {"usd": 0.5}, "id": "the same request"`) // counts once, and holds one slot
	}
	check(`, "amounts": {"usd": 5}, "id": "another request"`)
	var answer struct {
		Receipt string
	}
	if err := json.Unmarshal([]byte(check(`, "amounts": {"usd": 3.2}, "reserve": "1m", "receipt": true`)), &answer); err != nil || answer.Receipt == "" {
		t.Fatalf("%+v, %v", answer, err)
	}
	scrape := func(want ...string) {
		t.Helper()
		metrics := ask(at.Admin.String(), "/metrics", "")
		for _, w := range want {
			if !strings.Contains(metrics, "\n"+w+"\n") {
				t.Errorf("the metrics lack %s", w)
			}
		}
	}
	scrape(`weir_slots_in_use{rule="flight"} 3`, `weir_reservations{state="reserved"} 1`, `weir_reservations{state="settled"} 0`, "weir_budget_events_dropped_total 0")
	var counters struct {
		Counters []struct {
			Rule, Amount                 string
			Max, Remaining               float64
			InFlight                     *int `json:"in_flight"`
			WindowEnd, RunsOutAt, FullAt *string
		}
	}
	text := ask(at.Admin.String(), "/v1/counters", `{"key": "`+key+`"}`)
	if err := json.Unmarshal([]byte(text), &counters); err != nil || len(counters.Counters) != 2 {
		t.Fatal(text, err)
	}
	if c := counters.Counters[0]; c.Rule != "spend" || c.Amount != "usd" || c.Max != 10.5 || c.Remaining != 1.8 || c.InFlight != nil {
		t.Errorf("%s", text)
	}
	if c := counters.Counters[1]; c.Rule != "flight" || c.InFlight == nil || *c.InFlight != 3 || c.Max != 5 {
		t.Errorf("%s", text)
	}
	ask(at.HTTP.String(), "/v1/settle", `{"receipt": "`+answer.Receipt+`", "amounts": {"usd": 3}}`)
	scrape(`weir_slots_in_use{rule="flight"} 2`, `weir_reservations{state="settled"} 1`)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	close(events)
	var told []string
	for e := range events {
		told = append(told, fmt.Sprint(e.Threshold, " ", e.Used, " of ", e.Limit))
		if e.Rule != "spend" || e.Amount != "usd" || e.Node == "" || e.Fingerprint == "" || !strings.HasPrefix(e.Subject, "sk_") || e.WindowEnd.Day() != 1 {
			t.Errorf("%+v", e)
		}
	}
	if got := strings.Join(told, ", "); got != "50 5.5 of 10.5, 80 8.7 of 10.5" {
		t.Errorf("the webhook was told %s", got)
	}
	if n := strings.Count(log.String(), "msg=budget "); n != 2 || strings.Contains(log.String(), key) || strings.Contains(log.String(), "hunter2") || strings.Contains(log.String(), token) {
		t.Errorf("%d lines in the log:\n%s", n, log)
	}
}

func TestSettingsOfTheWebhook(t *testing.T) {
	for _, c := range []struct{ url, token, want string }{
		{"", "", ""},
		{"https://hooks.example.com/hunter2", "", ""},
		{"https://hooks.example.com/hunter2", writeFile(t, "token", "abc\n"), ""},
		{"", "token", "--budget-webhook-token-file: needs --budget-webhook"},
		{"ftp://example.com/hunter2", "", "--budget-webhook: must be a URL"},
		{"example.com/hunter2", "", "--budget-webhook: must be a URL"},
		{"https://example.com", filepath.Join(t.TempDir(), "none"), "--budget-webhook-token-file: open"},
		{"https://example.com", writeFile(t, "empty", "\n"), "must hold one token"},
		{"https://example.com", writeFile(t, "two", "hunter2 hunter2\n"), "must hold one token"},
	} {
		config := Config{BudgetWebhook: c.url, BudgetWebhookTokenFile: c.token}
		err := config.Validate()
		if err == nil {
			_, err = config.budgetToken()
		}
		switch {
		case c.want == "" && err == nil:
		case c.want == "" || err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%s, %s: %v", c.url, c.token, err)
		}
	}
}
