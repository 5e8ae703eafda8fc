package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// admin sends a request to a node's admin port.
func admin(t testing.TB, n *node, method, path, body string, headers ...string) (int, string) {
	t.Helper()
	res, text := call(t, method, n.Admin+path, body, headers...)
	return res.StatusCode, text
}

// mustAdmin sends a request that must succeed, and returns the rule version in the response.
func mustAdmin(t testing.TB, n *node, method, path, body string, headers ...string) int64 {
	t.Helper()
	status, text := admin(t, n, method, path, body, headers...)
	if status != http.StatusOK {
		t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	var out struct{ Version int64 }
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out.Version
}

// rulesVersion returns the version of the rules in force on a node.
func rulesVersion(t testing.TB, n *node) int64 {
	t.Helper()
	res, err := http.Get(n.HTTP + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var out struct {
		Version int64 `json:"rules_version"`
	}
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out.Version
}

// everywhere waits until all nodes use a rule version.
func everywhere(t testing.TB, nodes []*node, version int64) {
	t.Helper()
	for _, n := range nodes {
		until(t, func() error {
			if got := rulesVersion(t, n); got != version {
				return fmt.Errorf("%s is at version %d, want %d", n.Admin, got, version)
			}
			return nil
		})
	}
}

// load runs clients that send checks to all nodes.
type load struct {
	stop                  chan struct{}
	clients               sync.WaitGroup
	sent, failed, dropped atomic.Int64
}

// watched is a connection that counts if the other side closes it.
type watched struct {
	net.Conn
	dropped *atomic.Int64
}

func (c watched) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		c.dropped.Add(1)
	}
	return n, err
}

const loadClients = 6

// begin starts a load and returns once requests are being sent.
func begin(t testing.TB, nodes []*node) *load {
	t.Helper()
	l := &load{stop: make(chan struct{})}
	var dialer net.Dialer
	transport := &http.Transport{MaxIdleConnsPerHost: loadClients, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, addr)
		return watched{conn, &l.dropped}, err
	}}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	for i := range loadClients {
		l.clients.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				default:
				}
				status, _ := post(t, client, nodes[i%len(nodes)].HTTP+"/v1/check", fmt.Sprintf(`{"key": "sk_load_%d", "path": "/"}`, i))
				if status != http.StatusOK && status != http.StatusTooManyRequests {
					l.failed.Add(1)
				}
				l.sent.Add(1)
			}
		})
	}
	until(t, func() error {
		if n := l.sent.Load(); n < 100 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	return l
}

// end stops the load. It fails the test if requests failed or a node closed connections.
func (l *load) end(t testing.TB) {
	t.Helper()
	close(l.stop)
	l.clients.Wait()
	if l.failed.Load() > 0 || l.dropped.Load() > 0 {
		t.Errorf("%d of %d requests failed, %d connections were dropped", l.failed.Load(), l.sent.Load(), l.dropped.Load())
	}
}

// TestARuleChangesEverywhere checks that a tier can be raised and lowered on all nodes under load. No request fails, no
// connection is dropped, and clients keep the state of their counters.
func TestARuleChangesEverywhere(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	nodes := serveAll(t, 3, append(patient, "--store", "redis://"+r.Addr)...)
	reached(t, nodes...)
	everywhere(t, nodes, 1)

	body := `{"key": "sk_prod_1", "path": "/v1/orders"}`
	if got := allowed(t, nodes, 200, body); got != 200 {
		t.Fatalf("%d of 200 allowed: the tier has a burst of 200", got)
	}

	load := begin(t, nodes)
	version := mustAdmin(t, nodes[0], "PUT", "/v1/rules/tier/pro?force=true", `{"limit": 500, "capacity": 500}`)
	everywhere(t, nodes, version)
	for _, n := range nodes {
		status, text := post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"key": "sk_prod_2", "path": "/v1/orders", "cost": 0}`)
		if status != http.StatusOK || !strings.Contains(text, `"limit":500`) {
			t.Errorf("%s: %d %s", n.HTTP, status, text)
		}
	}
	// The client's bucket of 200 was empty, so it only has what was refilled since then.
	if got := allowed(t, nodes, 300, body); got > 250 {
		t.Errorf("%d of 300 allowed: a raised limit isn't a new bucket", got)
	}
	version = mustAdmin(t, nodes[1], "POST", "/v1/rules/rollback", `{"version": 1}`)
	everywhere(t, nodes, version)
	load.end(t)
	status, text := admin(t, nodes[2], "GET", "/v1/nodes", "")
	if status != http.StatusOK || strings.Count(text, `"self"`) != 3 {
		t.Errorf("%d %s", status, text)
	}
}

// TestRedisLosesTheRules checks that if Redis loses the rules, nodes keep and restore them, and report it. The next
// change gets a higher version.
func TestRedisLosesTheRules(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	nodes := serveAll(t, 2, "--store", "redis://"+r.Addr)
	reached(t, nodes...)
	version := int64(0)
	for i := range 3 {
		version = mustAdmin(t, nodes[0], "PUT", "/v1/denylist?force=true", fmt.Sprintf(`{"entries": ["sk_bad_%d"]}`, i))
	}
	everywhere(t, nodes, version)
	if err := r.RestartEmpty(); err != nil {
		t.Fatal(err)
	}
	until(t, func() error { // either node may restore them
		for _, n := range nodes {
			if n.said("the rule store has lost versions: the rules in force stay, and are put back") {
				return nil
			}
		}
		return errors.New("no node logs that the rules were lost")
	})
	everywhere(t, nodes, version)
	next := int64(0)
	until(t, func() error {
		status, text := admin(t, nodes[1], "PUT", "/v1/denylist?force=true", `{"entries": ["sk_later"]}`)
		if status != http.StatusOK {
			return fmt.Errorf("%d %s", status, text)
		}
		next = version + 1
		return nil
	})
	everywhere(t, nodes, next)
	if status, _ := post(t, http.DefaultClient, nodes[0].HTTP+"/v1/check", `{"key": "sk_later", "path": "/"}`); status != http.StatusForbidden {
		t.Errorf("the last denied key gets %d", status)
	}
}

func TestRulesSurviveARestart(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	n := serve(t, "--data", data)
	version := mustAdmin(t, n, "PUT", "/v1/denylist?force=true", `{"entries": ["sk_bad"]}`)
	n.stop()
	if err := <-n.exited; err != nil {
		t.Fatal(err)
	}
	n = serve(t, "--data", data, "--seed-rules", write(t, filepath.Join(t.TempDir(), "seed.yaml"), "rules: [{id: other, by: [ip], limit: 5/s}]"))
	if got := rulesVersion(t, n); got != version {
		t.Errorf("version %d after a restart, want %d", got, version)
	}
	if status, _ := post(t, http.DefaultClient, n.HTTP+"/v1/check", `{"key": "sk_bad", "path": "/"}`); status != http.StatusForbidden {
		t.Errorf("the denied key gets %d", status)
	}
}

func TestSeedRules(t *testing.T) {
	t.Parallel()
	n := serve(t, "--seed-rules", write(t, filepath.Join(t.TempDir(), "seed.yaml"), "rules: [{id: mine, by: [ip], limit: 5/s}]"))
	if _, text := admin(t, n, "GET", "/v1/rules", ""); !strings.Contains(text, "id: mine") {
		t.Errorf("in force: %s", text)
	}
	if _, text := admin(t, n, "GET", "/v1/rules/versions/1", ""); !strings.Contains(text, "seeded from") {
		t.Errorf("version 1: %s", text)
	}
}

// BenchmarkRuleChange measures, under load, the time from a change to the rules until each of three nodes uses it.
func BenchmarkRuleChange(b *testing.B) {
	r := redistest.New(b, redistest.Options{})
	nodes := serveAll(b, 3, "--store", "redis://"+r.Addr)
	reached(b, nodes...)
	load := begin(b, nodes)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		begun := time.Now()
		version := mustAdmin(b, nodes[i%3], "PUT", "/v1/rules/tier/pro?force=true", fmt.Sprintf(`{"limit": %d, "capacity": 500}`, 500+i%2))
		everywhere(b, nodes, version)
		took = append(took, time.Since(begun))
	}
	load.end(b)
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
