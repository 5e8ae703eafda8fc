package test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// claim is the store's status as one endpoint of a node reports it.
type claim struct {
	up    bool
	since int64    // Unix milliseconds; 0 while the store is up
	lost  []string // servers, sorted; nil if the endpoint doesn't list them
}

func (c claim) String() string { return fmt.Sprint(c.up, c.since, c.lost) }

// status is the store's status as several endpoints return it.
type status struct {
	Status string
	Since  time.Time
	Shards []struct {
		Name string
		Up   bool
	}
}

func (s status) claim() claim {
	c := claim{up: s.Status == "up", lost: []string{}}
	if !s.Since.IsZero() {
		c.since = s.Since.UnixMilli()
	}
	for _, sh := range s.Shards {
		if !sh.Up {
			c.lost = append(c.lost, sh.Name)
		}
	}
	slices.Sort(c.lost)
	return c
}

// nodesAnswer is the response of GET /v1/nodes.
type nodesAnswer struct {
	Nodes []struct {
		Name, Store string
		Self        bool
		Since       time.Time
		Lost        []string
	}
	Stale bool
	AgeS  *float64 `json:"age_seconds"`
	Store status
}

func nodesOf(t *testing.T, n *node) (out nodesAnswer) {
	t.Helper()
	code, text := admin(t, n, "GET", "/v1/nodes", "")
	if err := json.Unmarshal([]byte(text), &out); err != nil || code != http.StatusOK {
		t.Fatalf("/v1/nodes: %d %s", code, text)
	}
	return out
}

// claims returns what a node reports about its store, by endpoint.
func claims(t *testing.T, n *node) map[string]claim {
	t.Helper()
	all := map[string]claim{}
	for name, path := range map[string]string{"readyz": "/readyz", "version": "/v1/version"} {
		var out struct{ Store status }
		if _, text := admin(t, n, "GET", path, ""); json.Unmarshal([]byte(text), &out) != nil {
			t.Fatalf("%s: %s", path, text)
		}
		all[name] = out.Store.claim()
	}
	r := ready(t, n.HTTP+"/readyz") // this port needs no token
	c := status{Status: r.Store.Status, Since: r.Store.Since}.claim()
	c.lost = nil
	all["public readyz"] = c
	answer := nodesOf(t, n)
	all["nodes"] = answer.Store.claim()
	for _, row := range answer.Nodes {
		if row.Self {
			c := status{Status: row.Store, Since: row.Since}.claim()
			c.lost = append(c.lost, row.Lost...)
			slices.Sort(c.lost)
			all["row of nodes"] = c
		}
	}
	families, _ := scrape(t, n.Admin, asText, "")
	m := claim{up: true, lost: []string{}}
	for shard, up := range series(families["weir_store_up"]) {
		if up == 0 {
			m.up, m.lost = false, append(m.lost, shard)
		}
	}
	slices.Sort(m.lost)
	for _, at := range series(families["weir_store_lost_timestamp_seconds"]) {
		if ms := int64(at*1000 + .5); ms > 0 && (m.since == 0 || ms < m.since) {
			m.since = ms
		}
	}
	all["metrics"] = m
	return all
}

// agree waits until all endpoints of a node report the same status of the store, and returns it.
func agree(t *testing.T, n *node, up bool) (said claim) {
	t.Helper()
	until(t, func() error {
		all := claims(t, n)
		said = all["readyz"]
		for place, c := range all {
			if c.lost == nil {
				c.lost = said.lost
			}
			if c.String() != said.String() || c.up != up {
				return fmt.Errorf("%s: %v: %v", place, c, all)
			}
		}
		return nil
	})
	return said
}

// TestStoreHealthIsTrue checks that idle nodes notice that Redis is lost, since when, and that it is back. All
// endpoints agree, and the nodes still list each other.
func TestStoreHealthIsTrue(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	proxy := redistest.NewProxy(t, server.Addr)
	nodes := serveAll(t, 2, "--store", "redis://"+proxy.Addr)
	nodes = append(nodes, serve(t, "--store", "redis://"+proxy.Addr, "--rules", write(t, filepath.Join(t.TempDir(), "rules.yaml"), "rules: [{id: all, limit: 5/hour}]")))
	reached(t, nodes...)
	for _, fault := range []struct {
		name       string
		lose, heal func() error
	}{
		{"killed", func() error { server.Kill(); return nil }, server.Restart},
		{"silent", server.Stop, server.Cont},
		{"refused", func() error { proxy.Down(); return nil }, proxy.Up},
		{"swallowed", proxy.DropReplies, func() error { proxy.Heal(); return nil }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			list := func(n *node, stale bool) func() error {
				return func() error {
					got := nodesOf(t, n)
					for _, row := range got.Nodes {
						if want := map[bool]string{true: "unknown", false: "up"}[stale]; !row.Self && row.Store != want {
							return fmt.Errorf("the store of %s is %s: %+v", row.Name, row.Store, got)
						}
					}
					if len(got.Nodes) != len(nodes) || got.Stale != stale || got.AgeS == nil {
						return fmt.Errorf("%+v", got)
					}
					return nil
				}
			}
			for _, n := range nodes {
				agree(t, n, true)
				until(t, list(n, false))
			}
			// On a busy machine, calls may have failed in the last few seconds, and an outage starts with the first
			// failure.
			before := time.Now().Add(-5 * time.Second)
			if err := fault.lose(); err != nil {
				t.Fatal(err)
			}
			since := map[*node]int64{}
			for _, n := range nodes {
				said := agree(t, n, false)
				since[n] = said.since
				if said.since < before.UnixMilli() || said.since > time.Now().UnixMilli() || !slices.Equal(said.lost, []string{proxy.Addr}) {
					t.Errorf("lost at %d: %v", before.UnixMilli(), said)
				}
			}
			for _, n := range nodes {
				until(t, list(n, true))
				if said := agree(t, n, false); said.since != since[n] {
					t.Errorf("lost since %d, and later since %d", since[n], said.since)
				}
			}
			if err := fault.heal(); err != nil {
				t.Fatal(err)
			}
		})
	}
	for _, n := range nodes {
		agree(t, n, true)
	}
	// On a slow machine, the first attempt may fail. Its log line names the store, not a shard.
	line := nodes[0].await("redis can't be reached", func(line map[string]any) bool { return line["shard"] != nil })
	if keys, _ := line["keys_affected"].(float64); line["shard"] != proxy.Addr || line["since"] == nil || keys < 1 {
		t.Errorf("%v", line)
	}
}

// TestALostShardIsNamed checks that if a Cluster loses one of three shards, every endpoint names it, also for other
// nodes.
func TestALostShardIsNamed(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{Config: []string{"cluster-require-full-coverage no", "cluster-replica-no-failover yes"}})
	nodes := serveAll(t, 2, "--store", "redis-cluster://"+strings.Join(c.Addrs(), ","))
	reached(t, nodes...)
	holder, err := c.Owner(t.Context(), "weir{nodes}")
	if err != nil {
		t.Fatal(err)
	}
	victim := c.Nodes[0]
	if victim == holder {
		victim = c.Nodes[1]
	}
	if err := victim.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if said := agree(t, n, false); !slices.Equal(said.lost, []string{victim.Addr}) {
			t.Errorf("%v, want %s", said, victim.Addr)
		}
		until(t, func() error {
			got := nodesOf(t, n)
			for _, row := range got.Nodes {
				if row.Store != "degraded" || !slices.Equal(row.Lost, []string{victim.Addr}) || row.Since.IsZero() || got.Stale {
					return fmt.Errorf("%+v", got)
				}
			}
			return nil
		})
	}
	if err := victim.Cont(); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		agree(t, n, true)
	}
}

// TestPprof checks that profiles are served only with --pprof, and only to operators.
func TestPprof(t *testing.T) {
	t.Parallel()
	const operate, read = "an-operators-long-token", "a-readers-long-token"
	sum := func(token string) string {
		s := sha256.Sum256([]byte(token))
		return hex.EncodeToString(s[:])
	}
	tokens := write(t, filepath.Join(t.TempDir(), "tokens"), "ada operate "+sum(operate)+"\nbob read "+sum(read)+"\n")
	guarded := serve(t, "--pprof", "--admin-tokens", tokens)
	for _, c := range []struct {
		node   *node
		path   string
		token  string
		status int
	}{
		{guarded, "heap", operate, 200},
		{guarded, "profile?seconds=1", operate, 200},
		{guarded, "heap", read, 403},
		{guarded, "heap", "none", 401},
		{guarded, "cmdline", operate, 404},
		{serve(t, "--pprof"), "heap", "", 200},
		{serve(t), "heap", "", 404},
	} {
		code, text := admin(t, c.node, "GET", "/debug/pprof/"+c.path, "", "Authorization: Bearer "+c.token)
		if code != c.status || strings.Contains(text, tokens) {
			t.Errorf("%s with %q: got %d, want %d: %.200q", c.path, c.token, code, c.status, text)
		}
	}
	guarded.await("audit", func(l map[string]any) bool {
		return l["who"] == "ada" && l["what"] == "profile" && l["profile"] == "heap"
	})
	if res, err := http.Get(guarded.HTTP + "/debug/pprof/heap"); err != nil || res.StatusCode != http.StatusNotFound {
		t.Errorf("on the check API's port: %v, %v", res, err)
	}
}

// TestAnEvictingRedisIsReported checks that a node warns of a Redis that evicts counters, because eviction resets the
// counters of blocked clients. The warning is in the log at startup, and in /readyz, /v1/now and the metrics until
// Redis is configured correctly.
func TestAnEvictingRedisIsReported(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"allkeys-lru", "volatile-lru"} {
		r := redistest.New(t, redistest.Options{Config: []string{"maxmemory 100mb", "maxmemory-policy " + policy}})
		n := serve(t, "--store", "redis://"+r.Addr)
		n.await("redis evicts counters when it is full, and their limits start from zero: set maxmemory-policy to noeviction",
			func(line map[string]any) bool { return line["shard"] == r.Addr && line["maxmemory_policy"] == policy })
		told := func() (places []string) {
			_, text := admin(t, n, "GET", "/readyz", "")
			if strings.Contains(text, `"warning":"Redis evicts counters when it is full (`+r.Addr+" by "+policy+")") {
				places = append(places, "readyz")
			}
			if _, text := admin(t, n, "GET", "/v1/version", ""); strings.Contains(text, "Redis evicts counters") {
				documented(t, "/v1/version", text)
				places = append(places, "version")
			}
			if now := nowOf(t, n); trouble(&now, "store_evicts") != nil {
				_, text := admin(t, n, "GET", "/v1/now", "")
				documented(t, "/v1/now", text)
				places = append(places, "now")
			}
			families, _ := scrape(t, n.Admin, asText, "")
			if evicts := series(families["weir_store_evicts"]); len(evicts) != 1 {
				t.Errorf("weir_store_evicts: %v", evicts)
			} else if evicts[r.Addr] == 1 {
				places = append(places, "metrics")
			}
			return places
		}
		until(t, func() error {
			if got := told(); len(got) != 4 {
				return fmt.Errorf("%s: told in %v", policy, got)
			}
			return nil
		})
		if _, err := r.Do(t.Context(), "CONFIG", "SET", "maxmemory-policy", "noeviction"); err != nil {
			t.Fatal(err)
		}
		until(t, func() error {
			if got := told(); len(got) != 0 {
				return fmt.Errorf("noeviction, and still told in %v", got)
			}
			return nil
		})
	}
}
