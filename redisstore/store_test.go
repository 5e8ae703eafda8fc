package redisstore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/storetest"
)

// opener makes stores on one Redis that share its client, each with its own prefix, as two nodes see it.
func opener(t *testing.T, url string) storetest.OpenLender {
	var n atomic.Int64
	var mu sync.Mutex
	var base *Store
	return func(tb storetest.TB, now func() time.Time) (nodes [2]storetest.Lender) {
		mu.Lock()
		defer mu.Unlock()
		if base == nil {
			var err error
			if base, err = New(Options{URL: url, Timeout: 10 * time.Second, Now: now}); err != nil {
				tb.Fatalf("%v", err)
			}
			t.Cleanup(base.Close)
			if err := base.Ready(t.Context()); err != nil {
				tb.Fatalf("%v", err)
			}
		}
		prefix := fmt.Sprint("t", n.Add(1))
		for node := range nodes {
			s := &Store{timeout: base.timeout, clock: now, leastTTL: base.leastTTL, logger: base.logger, life: base.life}
			s.client.Store(base.client.Load())
			s.names.Store(newNamer(prefix, nil))
			s.peers.id = uint32(node + 1)
			s.joiners = make([]joiner, len(base.joiners))
			for i := range s.joiners {
				s.joiners[i].store = s
				s.joiners[i].shard.Store(base.joiners[i].shard.Load())
			}
			nodes[node] = s
		}
		return nodes
	}
}

func TestStoreOnOneServer(t *testing.T) {
	t.Parallel()
	r := redistest.New(t, redistest.Options{})
	storetest.RunLender(t, opener(t, "redis://"+r.Addr))
	lasting(t, r)
}

func TestStoreOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{})
	storetest.RunLender(t, opener(t, "redis-cluster://"+c.Addrs()[0]))
	primaries, err := c.Primaries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lasting(t, primaries...)
}

// lasting fails the test if any key except the secret has no TTL.
func lasting(t *testing.T, servers ...*redistest.Server) {
	t.Helper()
	keys, err := redistest.Lasting(t.Context(), "", func(key string) bool { return key == "weir{nodes}secret" }, servers...)
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) > 0 {
		t.Errorf("%d keys without a TTL: %q", len(keys), keys[:min(len(keys), 5)])
	}
}
