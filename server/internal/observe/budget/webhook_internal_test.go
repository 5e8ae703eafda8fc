package budget

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
)

// place stands in for a webhook's server, without a network.
type place func(*http.Request) (*http.Response, error)

func (p place) RoundTrip(r *http.Request) (*http.Response, error) { return p(r) }

func answer(status int, location string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Location": {location}}, Body: io.NopCloser(strings.NewReader(""))}
}

const secretURL = "https://user:hunter2@hooks.example.com/T0/hunter2?key=hunter2"

func hookTo(p place) (*Webhook, *bytes.Buffer) {
	log := &bytes.Buffer{}
	h := NewWebhook(secretURL, "token-hunter2", slog.New(slog.NewTextHandler(log, nil)))
	h.client.Transport = p
	return h, log
}

func closeHook(h *Webhook, atMost time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), atMost)
	defer cancel()
	h.close(ctx)
}

func TestAttempts(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []int // zero means no connection
		tries   int
		stats   WebhookStats
	}{
		{"taken", []int{204}, 1, WebhookStats{Sent: 1}},
		{"taken at last", []int{503, 0, 200}, 3, WebhookStats{Sent: 1}},
		{"never", []int{500, 429, 0, 200}, 3, WebhookStats{Failed: 1}},
		{"refused", []int{401, 200}, 1, WebhookStats{Failed: 1}},
		{"a redirect", []int{307, 200}, 1, WebhookStats{Failed: 1}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var asked []string
			h, log := hookTo(func(r *http.Request) (*http.Response, error) {
				body, _ := io.ReadAll(r.Body)
				asked = append(asked, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type")+" "+r.Header.Get("Authorization")+" "+string(body))
				if status := c.answers[len(asked)-1]; status != 0 {
					return answer(status, "https://elsewhere.example.com/"), nil
				}
				return nil, errors.New("no connection")
			})
			h.send(&Event{ID: "e1", Rule: "spend", Threshold: 80, Used: 40_500_000, Limit: 50_000_000})
			time.Sleep(10 * time.Second)
			closeHook(h, time.Second)
			if len(asked) != c.tries || h.Stats() != c.stats {
				t.Errorf("%s: %+v after %q", c.name, h.Stats(), asked)
			}
			for _, a := range asked {
				if !strings.HasPrefix(a, "POST /T0/hunter2 application/json Bearer token-hunter2 {") || !strings.Contains(a, `"id":"e1"`) || !strings.Contains(a, `"used":40.5,"limit":50`) {
					t.Errorf("%s: %s", c.name, a)
				}
			}
			if strings.Contains(log.String(), "hunter2") || c.stats.Failed > 0 != strings.Contains(log.String(), "webhook=https://hooks.example.com") {
				t.Errorf("%s: %s", c.name, log)
			}
		})
	}
}

// The backoff doubles, and an attempt lasts no longer than five seconds.
func TestTimesOfAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var at []time.Duration
		h, _ := hookTo(func(r *http.Request) (*http.Response, error) {
			at = append(at, time.Since(begun))
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		h.send(&Event{})
		time.Sleep(time.Minute)
		closeHook(h, time.Second)
		if len(at) != 3 || at[0] != 0 || at[1] != 6*time.Second || at[2] != 13*time.Second {
			t.Errorf("attempts after %v", at)
		}
	})
}

// Events are sent one at a time, events that don't fit into the queue are dropped, and a node's stop doesn't wait for a
// webhook that hangs.
func TestAWebhookThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most, total := 0, 0, 0
		h, log := hookTo(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			now, total = now+1, total+1
			most = max(most, now)
			mu.Unlock()
			<-r.Context().Done()
			mu.Lock()
			now--
			mu.Unlock()
			return nil, r.Context().Err()
		})
		for range 1000 {
			h.send(&Event{})
		}
		synctest.Wait()
		if s := h.Stats(); s.Dropped != 1000-256-1 && s.Dropped != 1000-256 {
			t.Errorf("%+v", s)
		}
		time.Sleep(2 * time.Minute)
		begun := time.Now()
		closeHook(h, 2*time.Second)
		if took := time.Since(begun); took != 2*time.Second {
			t.Errorf("it ended after %v", took)
		}
		if s := h.Stats(); most != 1 || s.Sent != 0 || s.Failed+s.Dropped != 1000 {
			t.Errorf("%d at a time, %d attempts, %+v", most, total, s)
		}
		if lines := strings.Count(log.String(), "\n"); lines > 3 {
			t.Errorf("%d lines in two minutes", lines)
		}
	})
}

// Over a real connection an event arrives complete, and a node that stops sends the queued events.
func TestEventsArrive(t *testing.T) {
	got := make(chan Event, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e Event
		dec := json.NewDecoder(r.Body)
		dec.DisallowUnknownFields()
		if err := dec.Decode(&e); err != nil {
			t.Error(err)
		}
		got <- e
	}))
	defer server.Close()
	log := slog.New(slog.DiscardHandler)
	h := NewWebhook(server.URL, "", log)
	want := &Event{ID: "1", Rule: "spend", Policy: "spend", Threshold: 100, Subject: "sk_…", Amount: "usd", Used: counter.Whole(50), Limit: counter.Whole(50), WindowEnd: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC), Refused: true}
	for range 3 {
		h.send(want)
	}
	closeHook(h, 10*time.Second)
	close(got)
	n := 0
	for e := range got {
		if n++; e != *want {
			t.Errorf("%+v", e)
		}
	}
	if n != 3 {
		t.Errorf("%d events arrived", n)
	}
}

func TestURLs(t *testing.T) {
	for text, good := range map[string]bool{
		"https://hooks.example.com/x": true, "http://127.0.0.1:9/": true, secretURL: true,
		"ftp://hunter2/": false, "hooks.example.com": false, "https://": false, "https:///hunter2": false, "http://[hunter2": false, "file:///hunter2": false,
	} {
		err := CheckURL(text)
		if (err == nil) != good || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if got := Place(secretURL); got != "https://hooks.example.com" {
		t.Error(got)
	}
}

// A threshold that was reported is remembered until many others were reported, and only a higher one replaces it.
func TestReportedThresholds(t *testing.T) {
	var x told
	yes := func(int) bool { return true }
	x.raise(window{policy: 1}, 1, yes)
	x.raise(window{policy: 1, refusals: true}, 3, yes)
	for i := range uint64(generation) {
		x.raise(window{policy: 2, subject: i}, 1, yes)
	}
	if x.count(window{policy: 1}) != 1 || x.count(window{policy: 1, refusals: true}) != 3 || x.count(window{policy: 2}) != 1 {
		t.Error("it was forgotten")
	}
	x.raise(window{policy: 1, refusals: true}, 2, func(int) bool { t.Error("told again"); return true })
	x.raise(window{policy: 1}, 3, func(from int) bool {
		if from != 1 {
			t.Errorf("told from %d", from)
		}
		return false
	})
	if x.count(window{policy: 1}) != 1 {
		t.Error("an unreported threshold is remembered")
	}
	for i := range uint64(5 * generation) {
		x.raise(window{policy: 3, subject: i}, 1, yes)
	}
	if x.count(window{policy: 1}) != 0 || len(x.young)+len(x.old) > 2*generation {
		t.Errorf("it has grown to %d", len(x.young)+len(x.old))
	}
}
