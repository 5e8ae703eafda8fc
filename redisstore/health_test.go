package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
)

// In a Cluster, the health names the lost shard, and says since when and why. The other shards are up.
func TestHealthOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{Password: "hunter2secret", Config: []string{"cluster-require-full-coverage no"}})
	s, err := New(Options{URL: "redis-cluster://:hunter2secret@" + strings.Join(c.Addrs(), ","), Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if h := s.Health(); h.Up || len(h.Shards) != 1 || h.Shards[0].Error == "" || h.Since.IsZero() {
		t.Errorf("before Redis was reached: %+v", h)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	h := s.Health()
	if !h.Up || !h.Since.IsZero() || h.Nodes != 1 || len(h.Shards) != 3 {
		t.Fatalf("%+v", h)
	}
	// On a busy machine, a replica may have replaced its primary by now.
	first := slices.IndexFunc(c.Nodes, func(n *redistest.Server) bool { return n.Addr == h.Shards[1].Name })
	for i, sh := range h.Shards {
		if !slices.Contains(c.Addrs(), sh.Name) || !sh.Up || sh.Error != "" {
			t.Errorf("shard %d: %+v", i, sh)
		}
	}

	c.Nodes[(first+3)%6].Kill() // first the replica: nobody is to take over
	c.Nodes[first].Kill()
	policy, err := counter.NewPolicy("p", counter.PerHour(1_000_000))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	err = redistest.Until(ctx, func(context.Context) error {
		n++
		charge := counter.Charge{Counter: counter.Counter{Policy: policy, Subject: fmt.Append(nil, n)}, N: 1}
		s.Take(ctx, []counter.Charge{charge}, make([]counter.Result, 1))
		if h = s.Health(); h.Up {
			return fmt.Errorf("%+v", h)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, sh := range h.Shards {
		if lost := i == 1; sh.Up == lost || lost != (sh.Error != "") || lost && !sh.Since.Equal(h.Since) {
			t.Errorf("shard %d: %+v", i, sh)
		}
	}
	if text := fmt.Sprintf("%+v %v", h, s); strings.Contains(text, "hunter2secret") {
		t.Errorf("the password is shown: %s", text)
	}
}

// TestAnEvictingRedisIsNoticed checks that the store names a server that evicts counters, which would free blocked clients,
// until the server no longer does so.
func TestAnEvictingRedisIsNoticed(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{})
	do(t, c.Nodes[1], "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	var log lines
	s := open(t, Options{URL: clusterURL(c), Logger: log.logger()})
	evicts := func(want ...string) {
		t.Helper()
		for i, sh := range s.Health().Shards {
			if sh.Evicts != want[i] || !sh.Up {
				t.Errorf("%s: evicts %q, up %v; want %q", sh.Name, sh.Evicts, sh.Up, want[i])
			}
		}
	}
	evicts("", "allkeys-lru", "") // as soon as the store is ready
	s.weigh()
	if n := log.count("redis evicts counters"); n != 1 {
		t.Errorf("%d warnings, want one when it begins", n)
	}
	do(t, c.Nodes[1], "CONFIG", "SET", "maxmemory-policy", "noeviction")
	do(t, c.Nodes[2], "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
	s.weigh()
	evicts("", "", "volatile-lru")
	if log.count("redis evicts counters") != 2 || log.count("redis doesn't evict counters any more") != 1 {
		t.Error("the log doesn't tell of the changes")
	}
}
