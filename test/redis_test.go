package test

import (
	"context"
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
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/internal/edge/checkapi"
)

// readiness is a response to /readyz.
type readiness struct {
	Status string
	Store  struct {
		URL, Status string
		Since       time.Time
		Nodes       int
		Shards      []struct {
			Name  string
			Up    bool
			Since time.Time
			Error string
		}
	}
}

// ready returns a port's readiness. The status is 200 whatever the store's state.
func ready(t testing.TB, url string) (r readiness) {
	t.Helper()
	status, text := settled(t, url)
	if err := json.Unmarshal(text, &r); err != nil || status != 200 {
		t.Fatalf("%s: %d, %v", url, status, err)
	}
	return r
}

// until waits up to a minute until a check returns no error.
func until(t testing.TB, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := redistest.Until(ctx, func(context.Context) error { return check() }); err != nil {
		t.Fatal(err)
	}
}

// reached waits until all nodes have reached their store and know each other.
func reached(t testing.TB, nodes ...*node) {
	t.Helper()
	until(t, func() error {
		for _, n := range nodes {
			if r := ready(t, n.Admin+"/readyz"); r.Store.Status != "up" || r.Store.Nodes != len(nodes) {
				return fmt.Errorf("%s: %+v", n.HTTP, r.Store)
			}
		}
		return nil
	})
}

// answer is the response to a check.
type answer struct {
	checkapi.CheckResponse
	status int
	header http.Header
}

func check(t *testing.T, n *node, body string) (a answer) {
	t.Helper()
	res, err := http.Post(n.HTTP+"/v1/check", "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return a
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil {
		err = json.Unmarshal(text, &a.CheckResponse)
	}
	if err != nil {
		t.Errorf("%s: %v in %s", res.Status, err, text)
	}
	a.status, a.header = res.StatusCode, res.Header
	return a
}

// allowed sends n checks to the nodes in turn and returns how many were allowed. None may be degraded.
func allowed(t *testing.T, nodes []*node, n int, body string) (count int) {
	t.Helper()
	for i := range n {
		a := check(t, nodes[i%len(nodes)], body)
		if a.Degraded || a.status != 200 && a.status != 429 {
			t.Errorf("%d %+v", a.status, a.CheckResponse)
		}
		if a.Allowed {
			count++
		}
	}
	return count
}

func serveAll(t testing.TB, n int, args ...string) (nodes []*node) {
	t.Helper()
	for range n {
		nodes = append(nodes, serve(t, args...))
	}
	return nodes
}

// patient is a store timeout for tests that need exact counts, however busy the machine is.
var patient = []string{"--store-timeout", "20s"}

// With four nodes, 64 clients and a limit of 1,000 a year, 1,000 of 3,000 requests are admitted. If nodes borrow
// tokens, fewer may be, because a busy machine may return leases late. Another node accepts a node's receipt, but only
// once.
func TestManyNodesOneLimit(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) string{
		"one server": func(t *testing.T) string { return "redis://" + redistest.New(t, redistest.Options{}).Addr },
		"Cluster": func(t *testing.T) string {
			return "redis-cluster://" + strings.Join(redistest.NewCluster(t, redistest.Options{}).Addrs()[:2], ",")
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), `
rules:
  - {id: bucket, match: {endpoint: /bucket}, limit: 1000/365d}
  - {id: strict, match: {endpoint: /strict}, limit: 1000/365d, strict: true}
  - {id: log, match: {endpoint: /log}, limit: 1000/day, algorithm: sliding_window_log}
  - {id: receipts, match: {endpoint: /receipts}, limit: 5/day}
  - {id: receipts-by-address, match: {endpoint: /receipts}, by: [ip], limit: 7/day, algorithm: fixed_window}
`)
			nodes := serveAll(t, 4, append(patient, "--rules", rules, "--store", open(t))...)
			reached(t, nodes...)
			for path, least := range map[string]int{"/bucket": 500, "/strict": 1000, "/log": 1000} {
				got := burst(t, nodes, 64, 3000, fmt.Sprintf(`{"key": "one", "path": %q}`, path))
				if got[200] < least || got[200] > 1000 || got[200]+got[429] != 3000 {
					t.Errorf("%s: %v", path, got)
				}
			}

			body := `{"key": "one", "path": "/receipts", "ip": "203.0.113.7", "receipt": true}`
			taken := check(t, nodes[0], body)
			if taken.Receipt == "" || taken.Remaining != 4 {
				t.Fatalf("%+v", taken.CheckResponse)
			}
			for i, want := range []int{200, 409, 409} {
				if status, text := post(t, http.DefaultClient, nodes[i+1].HTTP+"/v1/refund", fmt.Sprintf(`{"receipt": %q}`, taken.Receipt)); status != want {
					t.Errorf("refund %d: %d %s", i+1, status, text)
				}
			}
			if a := check(t, nodes[3], body); a.Limits[0].Remaining != 4 || a.Limits[1].Remaining != 6 {
				t.Errorf("after a refund: %+v", a.CheckResponse)
			}
		})
	}
}

// burst sends requests from several concurrent clients, each to a random node, and counts the responses by status. None
// may be degraded.
func burst(t *testing.T, nodes []*node, clients, requests int, body string) map[int]int {
	t.Helper()
	var mu sync.Mutex
	got := map[int]int{}
	work := make(chan struct{}, requests)
	for range requests {
		work <- struct{}{}
	}
	close(work)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for range work {
				status, text := post(t, client, nodes[i%len(nodes)].HTTP+"/v1/check", body)
				if !strings.Contains(text, `"degraded":false`) {
					t.Errorf("%d %s", status, text)
				}
				mu.Lock()
				got[status]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return got
}

const modes = `
rules:
  - {id: open, match: {endpoint: /open}, limit: 5/day}
  - {id: closed, match: {endpoint: /closed}, limit: 5/day, on_store_failure: refuse}
  - {id: local, match: {endpoint: /local}, limit: 8/day, on_store_failure: local}
`

// lost fails the test unless a node without its store decides by the rules' failure modes, with the given part of the
// limit for rules with mode local.
func lost(t *testing.T, n *node, part int) {
	t.Helper()
	for range 10 {
		a := check(t, n, `{"key": "k", "path": "/open"}`)
		if h := a.header; a.status != 200 || !a.Degraded || h.Get("X-RateLimit-Policy") != "degraded" || h.Get("X-RateLimit-Remaining") != "-1" || h.Get("RateLimit") != "" {
			t.Fatalf("allow: %d %v", a.status, h)
		}
		a = check(t, n, `{"key": "k", "path": "/closed"}`)
		if a.status != 503 || a.Code != "LIMITER_UNAVAILABLE" || a.header.Get("Retry-After") == "" {
			t.Fatalf("refuse: %d %+v %v", a.status, a.CheckResponse, a.header)
		}
	}
	got := map[int]int{}
	for range 2 * part {
		a := check(t, n, `{"key": "k", "path": "/local"}`)
		if !a.Degraded || a.Limit != 8 || a.header.Get("X-RateLimit-Policy") != "degraded" { // clients still see the rule's limit
			t.Fatalf("local: %d %+v %v", a.status, a.CheckResponse, a.header)
		}
		got[a.status]++
	}
	if got[200] != part || got[429] != part {
		t.Errorf("local: %v, want %d of each", got, part)
	}
}

// degraded fails the test unless both ports report since when the store is lost, and the admin port reports which
// server.
func degraded(t *testing.T, n *node, addr string) {
	t.Helper()
	if s := ready(t, n.HTTP+"/readyz").Store; s.Status != "degraded" || s.Since.IsZero() {
		t.Errorf("%s: %+v", n.HTTP, s)
	}
	for _, url := range []string{n.Admin + "/readyz", n.Admin + "/v1/version"} {
		s := ready(t, url).Store
		if s.Status != "degraded" || s.Since.IsZero() || len(s.Shards) != 1 {
			t.Fatalf("%s: %+v", url, s)
		}
		if sh := s.Shards[0]; sh.Name != addr || sh.Up || !sh.Since.Equal(s.Since) || sh.Error == "" {
			t.Errorf("%s: %+v", url, s)
		}
	}
}

// Nodes that start without Redis serve requests, notice when Redis is up, and count exactly from then on.
func TestStartWithoutRedis(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	r.Kill()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), modes)
	nodes := serveAll(t, 2, append(patient, "--rules", rules, "--store", "redis://"+r.Addr)...)
	for _, n := range nodes {
		lost(t, n, 8) // it doesn't know the other nodes yet, so its part is the whole limit
		degraded(t, n, r.Addr)
	}
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	reached(t, nodes...)
	for path, want := range map[string]int{"/open": 5, "/closed": 5, "/local": 8} {
		if got := allowed(t, nodes, 20, fmt.Sprintf(`{"key": "k", "path": %q}`, path)); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
}

// Redis dies while two nodes run, and comes back. In the meantime, the rules' failure modes decide, and each node logs
// one line for the loss and one for the return.
func TestRedisDiesAndReturns(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), modes)
	nodes := serveAll(t, 2, "--rules", rules, "--store", "redis://"+r.Addr, "--store-timeout", "300ms")
	reached(t, nodes...)
	r.Kill()
	for _, n := range nodes {
		lost(t, n, 4)
		degraded(t, n, r.Addr)
	}
	if err := r.Restart(); err != nil { // Redis has lost its data, and the nodes restore the shared secret
		t.Fatal(err)
	}
	reached(t, nodes...)
	for path, want := range map[string]int{"/open": 5, "/closed": 5, "/local": 8} {
		if got := allowed(t, nodes, 20, fmt.Sprintf(`{"key": "k", "path": %q}`, path)); got != want {
			t.Errorf("%s: %d, want %d", path, got, want)
		}
	}
	for _, n := range nodes {
		n.await("redis is back", func(map[string]any) bool { return true })
		n.mu.Lock()
		count := map[any]int{}
		for _, l := range n.log {
			if l["msg"] != "redis can't be reached" || l["shard"] != nil { // on a slow machine, a first failed attempt names no shard
				count[l["msg"]]++
			}
		}
		n.mu.Unlock()
		if count["redis can't be reached"] != 1 || count["redis is back"] != 1 || count["store"] != 0 {
			t.Errorf("%v", n.log)
		}
	}
}

// The emergency limit applies to each address, but only while Redis can't be reached.
func TestEmergencyLimit(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	r.Kill()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), modes)
	n := serve(t, append(patient, "--rules", rules, "--store", "redis://"+r.Addr, "--emergency-limit", "3/day")...)
	body := func(ip int) string {
		return fmt.Sprintf(`{"key": "k%d", "path": "/open", "ip": "203.0.113.%d"}`, ip, ip)
	}
	for ip := range 2 {
		for i, want := range []int{200, 200, 200, 429} {
			if a := check(t, n, body(ip)); a.status != want || a.status == 429 && a.header.Get("X-RateLimit-Rule") != "emergency" {
				t.Errorf("address %d, request %d: %d %v", ip, i+1, a.status, a.header)
			}
		}
	}
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	reached(t, n)
	if got := allowed(t, []*node{n}, 10, body(0)); got != 5 {
		t.Errorf("with Redis: %d", got)
	}
}

// A node that drains still gives back tokens for responses that don't count, and then tells the other nodes that it
// leaves.
func TestDrainWithRedis(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	inside, release := make(chan struct{}), make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(inside)
		<-release
	}))
	defer upstream.Close()
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules:\n  - {id: login, limit: 5/day, count: {status: [401]}}\n")
	args := append(patient, "--rules", rules, "--store", "redis://"+r.Addr, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL)
	nodes := serveAll(t, 2, args...)
	reached(t, nodes...)
	var wg sync.WaitGroup
	wg.Go(func() {
		req, err := http.NewRequest("GET", nodes[0].Gateway+"/", nil)
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("X-API-Key", "k")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		res.Body.Close()
	})
	<-inside
	if a := check(t, nodes[1], `{"key": "k", "cost": 0}`); a.Remaining != 4 {
		t.Errorf("while the request is under way: %+v", a.CheckResponse)
	}
	nodes[0].stop()
	nodes[0].await("draining", func(map[string]any) bool { return true })
	close(release)
	wg.Wait()
	if err := <-nodes[0].exited; err != nil {
		t.Error(err)
	}
	if a := check(t, nodes[1], `{"key": "k", "cost": 0}`); a.Remaining != 5 {
		t.Errorf("after the node has drained: %+v", a.CheckResponse)
	}
	if left, err := r.Do(t.Context(), "ZCARD", "weir{nodes}"); err != nil || left != int64(1) {
		t.Errorf("%v nodes are left, %v", left, err)
	}
}

// Redis' password is never shown, whatever goes wrong and wherever its URL was configured.
func TestPasswordIsNeverShown(t *testing.T) {
	const password = "hunter2secret"
	r := redistest.New(t, redistest.Options{Password: password})
	dir := t.TempDir()
	url := "redis://:" + password + "@" + r.Addr
	var shown []string

	file := write(t, filepath.Join(dir, "weir.yaml"), "store: "+url+"\nstore_timeout: 20s\n")
	fromFile := serve(t, "--config", file, "--log-level", "debug")
	reached(t, fromFile)
	t.Setenv("WEIR_STORE", "redis://:wrong"+password+"@"+r.Addr)
	refused := serve(t, "--log-level", "debug")
	refused.await("redis can't be reached", func(map[string]any) bool { return true })
	for _, n := range []*node{fromFile, refused} {
		for _, u := range []string{n.HTTP + "/readyz", n.Admin + "/readyz", n.Admin + "/v1/version", n.HTTP + "/healthz"} {
			res, err := http.Get(u)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(res.Body)
			res.Body.Close()
			shown = append(shown, string(text))
		}
		a := check(t, n, `{"key": "k"}`)
		shown = append(shown, fmt.Sprint(a.CheckResponse, a.header))
		n.stop()
		<-n.exited
		n.mu.Lock()
		shown = append(shown, fmt.Sprint(n.log))
		n.mu.Unlock()
	}

	broken := write(t, filepath.Join(dir, "broken.yaml"), "store: "+url+"\nhttp: [127.0.0.1:0\n")
	for _, args := range [][]string{
		{"serve", "--help"},
		{"serve", "--store", url + "/nonsense"},
		{"serve", "--store", strings.Replace(url, "redis:", "reddis:", 1)},
		{"serve", "--store", strings.Replace(url, ":"+password, password, 1)},
		{"serve", "--store", "redis://" + r.Addr + "?password=" + password},
		{"serve", "--store", password},
		{"serve", "--stor", url},
		{"serve", url},
		{"serve", "--config", broken},
		{"bench", url},
		{"bench", "--store", url + "/nonsense"},
		{"bench", "--store", url, "--duration", "100ms", "--warmup", "0s"},
		{"bench", "--store", strings.Replace(url, ":"+password, ":wrong"+password, 1), "--duration", "100ms"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		cancel()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if len(out) == 0 {
			t.Errorf("%q says nothing", args)
		}
		shown = append(shown, string(out))
	}
	for _, text := range shown {
		if strings.Contains(text, password) {
			t.Errorf("shown: %s", text)
		}
	}
	if !slices.ContainsFunc(shown, func(s string) bool { return strings.Contains(s, "redis://"+r.Addr) }) {
		t.Error("nothing shows the store's address: what was looked at?")
	}
}

// Once a node reports that it is ready, Redis decides its checks.
func TestFirstChecksAreDecided(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	rules := write(t, filepath.Join(t.TempDir(), "rules.yaml"), modes)
	for i := range 5 {
		n := serve(t, append(patient, "--rules", rules, "--store", "redis://"+r.Addr)...)
		ready(t, n.HTTP+"/readyz")
		if a := check(t, n, fmt.Sprintf(`{"key": "k%d", "path": "/closed"}`, i)); a.status != 200 || a.Degraded {
			t.Errorf("the first check: %d %+v", a.status, a.CheckResponse)
		}
	}
}
