package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/redistest"
)

// well is a budget that a healthy server meets even on a busy machine.
const well = 300 * time.Millisecond

// health returns nil if a store reports that it is up, or that it isn't, as wanted.
func health(s *Store, up bool) func(context.Context) error {
	return func(context.Context) error {
		if h := s.Health(); h.Up != up {
			return fmt.Errorf("%+v", h)
		}
		return nil
	}
}

// A store without checks finds out that its server, or a shard of its Cluster, is lost, and that it is back.
func TestAnIdleStoreKnows(t *testing.T) {
	t.Parallel()
	t.Run("one server", func(t *testing.T) {
		r := redistest.New(t, redistest.Options{})
		s := open(t, Options{URL: "redis://" + r.Addr, Timeout: well})
		r.Kill()
		until(t, health(s, false))
		if err := r.Restart(); err != nil {
			t.Fatal(err)
		}
		until(t, health(s, true))
	})
	t.Run("silent", func(t *testing.T) {
		r := redistest.New(t, redistest.Options{})
		s := open(t, Options{URL: "redis://" + r.Addr, Timeout: well})
		if err := r.Stop(); err != nil {
			t.Fatal(err)
		}
		until(t, health(s, false))
		if err := r.Cont(); err != nil {
			t.Fatal(err)
		}
		until(t, health(s, true))
	})
	t.Run("a shard", func(t *testing.T) {
		c := redistest.NewCluster(t, redistest.Options{Config: []string{"cluster-require-full-coverage no", "cluster-replica-no-failover yes"}})
		s := open(t, Options{URL: clusterURL(c), Timeout: well})
		if err := c.Nodes[1].Stop(); err != nil {
			t.Fatal(err)
		}
		until(t, health(s, false))
		for i, sh := range s.Health().Shards {
			if sh.Up == (i == 1) {
				t.Errorf("shard %d: %+v", i, sh)
			}
		}
		if err := c.Nodes[1].Cont(); err != nil {
			t.Fatal(err)
		}
		until(t, health(s, true))
	})
}

// A store without checks stops asking a Sentinel that is cut off and names a lost primary, and asks another one.
func TestAnIdleStoreLeavesAStaleSentinel(t *testing.T) {
	t.Parallel()
	group, other := redistest.NewSentinel(t, redistest.Options{}), redistest.New(t, redistest.Options{})
	stale, fresh := group.Sentinels[0], group.Sentinels[1]
	for _, sentinel := range group.Sentinels {
		do(t, sentinel, "SENTINEL", "REMOVE", redistest.MasterName)
	}
	monitor := func(sentinel, primary *redistest.Server, quorum string) {
		host, port, _ := strings.Cut(primary.Addr, ":")
		do(t, sentinel, "SENTINEL", "MONITOR", redistest.MasterName, host, port, quorum)
	}
	monitor(stale, group.Servers[0], "9") // it never finds so many that agree, and never names another
	monitor(fresh, other, "1")
	open(t, Options{URL: "redis-sentinel://" + stale.Addr + "," + fresh.Addr + "/" + redistest.MasterName, Timeout: well})
	if do(t, group.Servers[0], "EXISTS", "weir{nodes}") != int64(1) {
		t.Fatal("the store doesn't use the primary that the first Sentinel names")
	}
	group.Servers[0].Kill()
	until(t, func(context.Context) error {
		if do(t, other, "EXISTS", "weir{nodes}") != int64(1) {
			return errors.New("the store hasn't come to the other primary")
		}
		return nil
	})
}

// Tried is closed after the first attempt, whether or not Redis was reached.
func TestTried(t *testing.T) {
	r := redistest.New(t, redistest.Options{})
	s := openLate(t, Options{URL: "redis://" + r.Addr})
	<-s.Tried()
	if !s.Health().Up {
		t.Errorf("a server that is there: %+v", s.Health())
	}
	r.Kill()
	s = openLate(t, Options{URL: "redis://" + r.Addr})
	<-s.Tried()
	if h := s.Health(); h.Up || !strings.Contains(h.Shards[0].Error, "refused") {
		t.Errorf("a server that isn't there: %+v", h)
	}
}
