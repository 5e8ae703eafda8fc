package test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/redistest"
)

// TestANodeUnderTheDocumentedPermissions checks that a node whose Redis user has exactly the permissions in
// docs/reference/redis.md can count, refund, hold slots, change rules and notify other nodes. Redis refuses none of its
// commands on one server, in a Cluster or with Sentinels.
func TestANodeUnderTheDocumentedPermissions(t *testing.T) {
	t.Parallel()
	_, line, found := strings.Cut(read(t, "../docs/reference/redis.md"), "\nuser weir on >PASSWORD ")
	if !found {
		t.Fatal("docs/reference/redis.md has no permissions")
	}
	acl, _, _ := strings.Cut(line, "\n")
	for name, open := range map[string]func(*testing.T) (url string, servers []*redistest.Server){
		"one server": func(t *testing.T) (string, []*redistest.Server) {
			r := redistest.New(t, redistest.Options{})
			return "redis://weir:secret@" + r.Addr, []*redistest.Server{r}
		},
		"Cluster": func(t *testing.T) (string, []*redistest.Server) {
			c := redistest.NewCluster(t, redistest.Options{})
			return "redis-cluster://weir:secret@" + strings.Join(c.Addrs(), ","), c.Nodes
		},
		"Sentinel": func(t *testing.T) (string, []*redistest.Server) {
			s := redistest.NewSentinel(t, redistest.Options{})
			return "redis-sentinel://weir:secret@" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName, s.Servers
		},
	} {
		t.Run(name, func(t *testing.T) {
			url, servers := open(t)
			redis := func(r *redistest.Server, args ...string) any {
				t.Helper()
				v, err := r.Do(t.Context(), args...)
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			for _, r := range servers {
				redis(r, append([]string{"ACL", "SETUSER", "weir", "on", ">secret"}, strings.Fields(acl)...)...)
			}
			nodes := serveAll(t, 2, append([]string{"--store", url}, patient...)...)
			reached(t, nodes...)
			n := nodes[0]
			mustAdmin(t, n, "PUT", "/v1/rules?force=true", `
rules:
  - {id: minute, match: {endpoint: /minute}, limit: 100/minute, abuse: {refusals: 1/minute, cooldown: 10s}}
  - {id: log, match: {endpoint: /log}, limit: 3/hour, algorithm: sliding_window_log, strict: true}
  - {id: flight, match: {endpoint: /flight}, algorithm: concurrency, limit: 2}
`, "If-Match: *")
			until(t, func() error {
				for _, n := range nodes {
					if _, text := admin(t, n, "GET", "/v1/rules", ""); !strings.Contains(text, "flight") {
						return fmt.Errorf("%s has other rules", n.Admin)
					}
				}
				return nil
			})
			for _, path := range []string{"/minute", "/log", "/flight"} {
				for i := range 6 {
					n := nodes[i%2]
					a := check(t, n, fmt.Sprintf(`{"key": "k", "path": %q}`, path))
					if a.Degraded {
						t.Errorf("%s: a degraded answer", path)
					}
					if a.Receipt != "" && i == 0 {
						if status, text := post(t, http.DefaultClient, n.HTTP+"/v1/refund", fmt.Sprintf(`{"receipt": %q}`, a.Receipt)); status != 200 {
							t.Errorf("refund: %d %s", status, text)
						}
					}
				}
			}
			for _, path := range []string{"/v1/nodes", "/v1/top", "/v1/now", "/v1/rules/versions"} {
				if status, text := admin(t, n, "GET", path, ""); status != 200 {
					t.Errorf("%s: %d %s", path, status, text)
				}
			}
			for _, r := range servers {
				if refused := redis(r, "ACL", "LOG").([]any); len(refused) > 0 {
					t.Errorf("%s refused the node something: %v", r.Addr, refused)
				}
			}
		})
	}
}
