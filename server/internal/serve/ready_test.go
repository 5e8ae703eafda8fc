package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/internal/node/inforce"
	"github.com/weirhq/weir/internal/redistest"
)

// A node that has just started isn't ready while it may still reach its store. It is ready once it has reached the
// store, or has tried for long enough, because rules say what happens without a store.
func TestReadiness(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	r.Kill()
	n := &node{config: Config{Store: "redis://" + r.Addr, StoreTimeout: time.Second}, log: slog.New(slog.DiscardHandler)}
	if err := n.openStore(); err != nil {
		t.Fatal(err)
	}
	defer n.closeStore()
	doc, err := inforce.Parse("rules", []byte("rules: [{id: all, limit: 5/hour}]"), 1)
	if err != nil {
		t.Fatal(err)
	}
	n.rules = inforce.FromFile("rules.yaml", doc, n.limiter, n.log)
	ready := func() (status int, word string) {
		w := httptest.NewRecorder()
		n.readyz(func(*http.Request) bool { return false })(w, httptest.NewRequest("GET", "/readyz", nil))
		var body struct{ Status string }
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatal(err)
		}
		return w.Code, body.Status
	}
	started, longAgo := time.Now().Add(time.Hour), time.Now().Add(-time.Hour) // neither is reached during the test
	for _, c := range []struct {
		began  time.Time
		status int
		word   string
	}{{started, 503, "connecting"}, {longAgo, 200, "ready"}} {
		n.began = c.began
		if status, word := ready(); status != c.status || word != c.word {
			t.Errorf("without its store: %d %s, want %d %s", status, word, c.status, c.word)
		}
	}
	n.began = started
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := redistest.Until(ctx, func(context.Context) error {
		if status, word := ready(); status != 200 {
			return fmt.Errorf("%d %s", status, word)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	n.draining.Store(true)
	if status, word := ready(); status != 503 || word != "draining" {
		t.Errorf("draining: %d %s", status, word)
	}
}

// The admin port lists its endpoints, including profiles.
func TestTheAdminPortListsItsEndpoints(t *testing.T) {
	n := &node{config: Config{Pprof: true}, registry: prometheus.NewRegistry()}
	h := n.admin(t.Context(), nil)
	for path, want := range map[string]struct {
		status int
		text   string
	}{"/": {200, "/v1/top"}, "/debug/pprof/": {404, AdminPort + ": try GET /debug/pprof/ and profile, heap"}, "/nowhere": {404, "/v1/rules"}} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != want.status || !strings.Contains(w.Body.String(), want.text) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
