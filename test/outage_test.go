package test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

// readyz returns a node's response to /readyz, whatever its status.
func readyz(t testing.TB, n *node) (status int, body map[string]any) {
	t.Helper()
	status, text := settled(t, n.HTTP+"/readyz")
	if err := json.Unmarshal(text, &body); err != nil {
		t.Fatal(err)
	}
	return status, body
}

// settled returns a port's response to /readyz once the node is no longer connecting to its store.
func settled(t testing.TB, url string) (status int, text []byte) {
	t.Helper()
	until(t, func() error {
		res, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if text, err = io.ReadAll(res.Body); err != nil {
			t.Fatal(err)
		}
		if status = res.StatusCode; strings.Contains(string(text), `"status":"connecting"`) {
			return fmt.Errorf("%s: %d %s", url, status, text)
		}
		return nil
	})
	return status, text
}

// asks sends a check and returns the status, the error code and Retry-After.
func asks(t testing.TB, url, body string) (status int, code, retry string) {
	t.Helper()
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		Code  string // code of a decision
		Error struct{ Code string }
	}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return res.StatusCode, out.Code + out.Error.Code, res.Header.Get("Retry-After")
}

const stolen = `{"key": "sk_stolen", "path": "/"}`

func wantStatus(t testing.TB, n *node, body string, want int) {
	t.Helper()
	if got, _, _ := asks(t, n.HTTP+"/v1/check", body); got != want {
		t.Errorf("%s gets %d, want %d", body, got, want)
	}
}

// crash kills a node without warning, as a power failure would.
func crash(n *node) {
	_ = n.cmd.Process.Signal(syscall.SIGKILL)
	<-n.exited
}

// A node that restarts while Redis is down uses the last rules that it had, even if it was killed: a blocked key stays
// blocked, and a rule that refuses without its store refuses.
func TestARestartWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	data := filepath.Join(t.TempDir(), "data")
	args := []string{"--store", "redis://" + r.Addr, "--data", data}
	n := serve(t, args...)
	reached(t, n)
	mustAdmin(t, n, "PUT", "/v1/rules?force=true", "rules: [{id: closed, limit: 100/m, on_store_failure: refuse}]", "If-Match: *")
	version := mustAdmin(t, n, "PUT", "/v1/denylist", `{"entries": ["sk_stolen"]}`)
	until(t, func() error {
		kept, _ := filepath.Glob(filepath.Join(data, "redis-*", "*.yaml"))
		for _, file := range kept {
			if text, _ := os.ReadFile(file); strings.Contains(string(text), "sk_stolen") {
				return nil
			}
		}
		return fmt.Errorf("%v don't have it", kept)
	})
	crash(n)
	r.Kill()
	n = serve(t, "--store", "redis://weir:another@"+r.Addr, "--data", data) // the copy on disk doesn't depend on the user
	if status, body := readyz(t, n); status != 200 || body["rules_version"] != float64(version) || body["rules_stale"] == nil {
		t.Errorf("ready: %d %v", status, body)
	}
	wantStatus(t, n, stolen, 403)
	wantStatus(t, n, `{"key": "sk_other", "path": "/"}`, 503)
	if status, text := admin(t, n, "GET", "/v1/rules", ""); status != 200 || !strings.Contains(text, "sk_stolen") {
		t.Errorf("the rules: %d %s", status, text)
	}
	// If the newest copy is damaged, too, the node uses the one before it, and logs that.
	n.stop()
	<-n.exited
	kept, _ := filepath.Glob(filepath.Join(data, "redis-*", "*.yaml"))
	for _, file := range kept {
		if text, _ := os.ReadFile(file); strings.Contains(string(text), "sk_stolen") {
			if err := os.WriteFile(file, text[:len(text)/2], 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	n = serve(t, args...)
	if status, body := readyz(t, n); status != 200 || body["rules_version"] == 0.0 || body["rules_version"] == float64(version) {
		t.Errorf("with a damaged copy: %v", body)
	}
	if !n.said("part of the rules that this node has kept can't be used") {
		t.Error("the log doesn't say that the copy is damaged")
	}
	// Redis comes back empty. The node restores its rules there, because no other node has any.
	if err := r.RestartEmpty(); err != nil {
		t.Fatal(err)
	}
	until(t, func() error {
		if _, body := readyz(t, n); body["rules_stale"] != nil {
			return fmt.Errorf("%v", body)
		}
		return nil
	})
	if status, text := admin(t, n, "GET", "/v1/rules/versions", ""); status != 200 || !strings.Contains(text, "restored: ") {
		t.Errorf("the history: %d %s", status, text)
	}
}

// A node without any rules isn't ready and refuses checks on all edges, rather than admit everybody with starter rules.
// If the store becomes reachable and is really empty, the node starts to serve.
func TestAStartWithNothing(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	r.Kill()
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	n := serve(t, "--store", "redis://"+r.Addr, "--gateway", "127.0.0.1:0", "--upstream", upstream.URL)
	for range 2 {
		if status, body := readyz(t, n); status != 503 || body["status"] != "no rules" || !strings.Contains(fmt.Sprint(body["reason"]), "--seed-rules") || body["rules_version"] != 0.0 {
			t.Errorf("ready: %d %v", status, body)
		}
		if status, code, retry := asks(t, n.HTTP+"/v1/check", stolen); status != 503 || code != "LIMITER_UNAVAILABLE" || retry == "" {
			t.Errorf("a check: %d %s, Retry-After: %s", status, code, retry)
		}
		if status, text := post(t, http.DefaultClient, n.HTTP+"/v1/checks", `{"checks": [`+stolen+`]}`); status != 200 || !strings.Contains(text, `"allowed":false`) {
			t.Errorf("checks: %d %s", status, text)
		}
		if status, code, retry := asks(t, n.Gateway+"/", ""); status != 503 || code != "LIMITER_UNAVAILABLE" || retry == "" {
			t.Errorf("the gateway: %d %s, Retry-After: %s", status, code, retry)
		}
		for _, path := range []string{"/v1/rules", "/v1/denylist", "/v1/rules/versions"} {
			if status, text := admin(t, n, "GET", path, ""); status != 503 || !strings.Contains(text, "RULES_UNAVAILABLE") || strings.Contains(text, "changed") {
				t.Errorf("%s: %d %s", path, status, text)
			}
		}
		if status, text := admin(t, n, "PUT", "/v1/rules?force=true", "rules: [{id: mine, limit: 5/m}]", "If-Match: *"); status != 503 {
			t.Errorf("a change: %d %s", status, text)
		}
		if status, text := admin(t, n, "POST", "/v1/counters/reset", stolen); status != 503 {
			t.Errorf("a reset: %d %s", status, text)
		}
		for _, path := range []string{"/v1/explain", "/v1/counters", "/v1/rules/validate"} { // only that they respond matters
			admin(t, n, "POST", path, stolen)
		}
	}
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	everywhere(t, []*node{n}, 1)
	if status, body := readyz(t, n); status != 200 || body["status"] != "ready" || body["rules_stale"] != nil {
		t.Errorf("ready: %d %v", status, body)
	}
	wantStatus(t, n, stolen, 200)
}

// A node with seed rules uses them while Redis is down. When Redis is back, they become the first version if it is
// empty; otherwise the node takes the rules from Redis.
func TestSeedRulesWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	r.Kill()
	seed := write(t, filepath.Join(t.TempDir(), "seed.yaml"), "rules: [{id: mine, limit: 5/m}]\nblacklist: [sk_stolen]")
	n := serve(t, "--store", "redis://"+r.Addr, "--seed-rules", seed)
	if status, body := readyz(t, n); status != 200 || body["rules_version"] != 0.0 || body["rules_stale"] == nil {
		t.Errorf("ready: %d %v", status, body)
	}
	wantStatus(t, n, stolen, 403)
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	everywhere(t, []*node{n}, 1)
	other := serve(t, "--store", "redis://"+r.Addr, "--seed-rules", write(t, filepath.Join(t.TempDir(), "other.yaml"), "rules: [{id: other, limit: 9/m}]"))
	everywhere(t, []*node{other}, 1)
	wantStatus(t, other, stolen, 403)
}

// If the data folder can't be written, the node only logs a warning.
func TestAFolderThatCantBeWritten(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	data := write(t, filepath.Join(t.TempDir(), "data"), "this is no folder")
	n := serve(t, "--store", "redis://"+r.Addr, "--data", data)
	everywhere(t, []*node{n}, 1)
	n.await("rules can't be kept on disk: if this node starts without the rule store, it has older rules or none", func(map[string]any) bool { return true })
	for range 3 {
		mustAdmin(t, n, "PUT", "/v1/denylist?force=true", `{"entries": ["sk_stolen"]}`)
	}
	wantStatus(t, n, stolen, 403)
}

// A node without Redis also starts if its data folder can't be written. Changes to its rules then last only until it
// exits.
func TestAFolderOfANodeAloneThatCantBeWritten(t *testing.T) {
	t.Parallel()
	data := write(t, filepath.Join(t.TempDir(), "data"), "this is no folder")
	n := serve(t, "--data", data)
	if !n.said("--data can't be written: changes of rules are lost with the end of this node") {
		t.Error("the log has no warning")
	}
	version := mustAdmin(t, n, "PUT", "/v1/denylist?force=true", `{"entries": ["sk_stolen"]}`)
	everywhere(t, []*node{n}, version)
	wantStatus(t, n, stolen, 403)
}

// If the data folder has rules that can't be read, the node doesn't use starter rules instead, so a blocked key stays
// blocked.
func TestAFolderOfANodeAloneThatCantBeRead(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	write(t, filepath.Join(data, "1.yaml"), "damaged")
	if err := os.Symlink(write(t, filepath.Join(t.TempDir(), "file"), "")+"/lock", filepath.Join(data, "lock")); err != nil { // this makes reading fail even for root
		t.Fatal(err)
	}
	n := serve(t, "--data", data)
	if status, body := readyz(t, n); status != 503 || body["status"] != "no rules" || !strings.Contains(fmt.Sprint(body["reason"]), "--data") {
		t.Errorf("ready: %d %v", status, body)
	}
	wantStatus(t, n, stolen, 503)

	n = serve(t, "--data", data, "--seed-rules", write(t, filepath.Join(t.TempDir(), "seed.yaml"), "rules: [{id: mine, limit: 5/m}]\nblacklist: [sk_stolen]"))
	everywhere(t, []*node{n}, 1)
	wantStatus(t, n, stolen, 403)
}

// Unexpected data among the rule versions, or rules that this node can't read, don't make it start over.
func TestOddEntriesDontMakeANodeStartOver(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string][][]string{
		"an odd member":             {{"ZADD", "weir{rules}numbers", "999", "odd"}},
		"rules of a newer Weir":     {{"HSET", "weir{rules}texts", "1", "later: [1, 2]"}, {"HSET", "weir{rules}about", "1", `{"parent":0,"author":"weir","message":"","time":"2026-01-01T00:00:00Z"}`}},
		"nothing but odd members":   {{"DEL", "weir{rules}numbers"}, {"ZADD", "weir{rules}numbers", "999", "odd"}},
		"knowledge that is no JSON": {{"HSET", "weir{rules}about", "1", "nonsense"}},
		"a number of another type":  {{"DEL", "weir{rules}numbers"}, {"SET", "weir{rules}numbers", "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := redistest.New(t, redistest.Options{})
			seed := write(t, filepath.Join(t.TempDir(), "seed.yaml"), "rules: [{id: mine, limit: 5/m}]\nblacklist: [sk_stolen]")
			old := serve(t, "--store", "redis://"+r.Addr, "--seed-rules", seed)
			everywhere(t, []*node{old}, 1)
			crash(old)
			for _, command := range spoil {
				if _, err := r.Do(t.Context(), command...); err != nil {
					t.Fatal(err)
				}
			}
			n := serve(t, "--store", "redis://"+r.Addr)
			if status, _, _ := asks(t, n.HTTP+"/v1/check", stolen); status != 403 && status != 503 {
				t.Errorf("the stolen key gets %d", status)
			}
			if status, body := readyz(t, n); (status == 200) != (body["rules_version"] == 1.0) {
				t.Errorf("ready: %d %v", status, body)
			}
		})
	}
}

// After FLUSHALL, a node with other seed rules starts before the first one reconnects. In the end both nodes use the
// same rules, and the rules that were in force before stay in the history.
func TestFlushAllAndAnotherSeed(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	proxy := redistest.NewProxy(t, r.Addr)
	seed := write(t, filepath.Join(t.TempDir(), "seed.yaml"), "rules: [{id: mine, limit: 5/m}]")
	n := serve(t, "--store", "redis://"+proxy.Addr, "--seed-rules", seed)
	everywhere(t, []*node{n}, 1)
	version := mustAdmin(t, n, "PUT", "/v1/denylist", `{"entries": ["sk_stolen"]}`)
	proxy.Down() // so that this node reconnects after the other has started
	if _, err := r.Do(t.Context(), "FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	other := serve(t, "--store", "redis://"+r.Addr, "--seed-rules", write(t, filepath.Join(t.TempDir(), "other.yaml"), "rules: [{id: other, limit: 9/m}]"))
	everywhere(t, []*node{other}, 1)
	if status, text := admin(t, other, "PUT", "/v1/allowlist?force=true", `{"entries": ["sk_other"]}`); status != 200 { // so that both nodes are at version 2
		t.Fatalf("%d %s", status, text)
	}
	if err := proxy.Up(); err != nil {
		t.Fatal(err)
	}
	// The rules that the new store holds are in force, and those that were in force before aren't lost.
	until(t, func() error {
		_, one := admin(t, n, "GET", "/v1/rules", "")
		_, two := admin(t, other, "GET", "/v1/rules", "")
		if one != two {
			return fmt.Errorf("both are at version %d, and decide by\n%s\n%s", version, one, two)
		}
		return nil
	})
	n.await("the rule store has gone on without the rules in force here: this node takes the store's, and its own stay in the history as an orphan", func(map[string]any) bool { return true })
	var list struct {
		Versions []struct {
			Version int64
			Hash    string
			Orphan  bool
		}
	}
	_, text := admin(t, other, "GET", "/v1/rules/versions", "")
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	for _, v := range list.Versions {
		if v.Orphan && v.Version == version {
			// The orphaned version can be viewed, compared and rolled back to.
			if _, text := admin(t, other, "GET", fmt.Sprintf("/v1/rules/versions/%d-%s", v.Version, v.Hash[:8]), ""); !strings.Contains(text, "sk_stolen") {
				t.Errorf("the orphan: %s", text)
			}
			if _, text := admin(t, other, "GET", fmt.Sprintf("/v1/rules/diff?from=%d&to=%d-%s", v.Version, v.Version, v.Hash[:8]), ""); !strings.Contains(text, "sk_stolen") {
				t.Errorf("the orphan, compared with the version that has its number: %s", text)
			}
			next := mustAdmin(t, other, "POST", "/v1/rules/rollback?force=true", fmt.Sprintf(`{"version": %d, "hash": %q}`, v.Version, v.Hash[:8]))
			everywhere(t, []*node{n, other}, next)
			wantStatus(t, n, stolen, 403)
			return
		}
	}
	t.Errorf("the history doesn't have the block: %s", text)
}
