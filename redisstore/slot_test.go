package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/redistest"
)

// TestAnUnservedSlotIsItsOwnFault checks that if no server serves a hash slot, only charges in that slot fail. Other slots of
// the same server work, and so does that slot once it is served again.
func TestAnUnservedSlotIsItsOwnFault(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{})
	owner := c.Nodes[0]
	const lost, healthy = 5, 6 // tags that it owns
	slot := strconv.Itoa(slotOf(tagNames[lost]))
	id := func(r *redistest.Server) string { return do(t, r, "CLUSTER", "MYID").(string) }
	cases := []struct {
		name       string
		lose, mend func(context.Context)
	}{
		{"deleted everywhere", func(ctx context.Context) {
			for _, node := range c.Nodes { // an error where gossip was faster
				_, _ = node.Do(ctx, "CLUSTER", "DELSLOTS", slot)
			}
		}, func(ctx context.Context) { _, _ = owner.Do(ctx, "CLUSTER", "ADDSLOTS", slot) }},
		{"deleted at its server", func(ctx context.Context) {
			_, _ = owner.Do(ctx, "CLUSTER", "DELSLOTS", slot)
		}, func(ctx context.Context) { _, _ = owner.Do(ctx, "CLUSTER", "ADDSLOTS", slot) }},
		{"each names another", func(context.Context) {
			do(t, owner, "FLUSHALL") // a slot that has keys isn't given away
			do(t, owner, "CLUSTER", "SETSLOT", slot, "NODE", id(c.Nodes[1]))
		}, func(context.Context) { do(t, owner, "CLUSTER", "SETSLOT", slot, "NODE", id(owner)) }},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			s := open(t, Options{URL: clusterURL(c), Timeout: time.Second})
			p := policy(t, k.name, counter.TokenBucket, 1_000_000, year)
			here, gone := tagged(s, healthy, "s"), tagged(s, lost, "s")
			until(t, func(ctx context.Context) error {
				if s.joiners[healthy].shard.Load() != s.joiners[lost].shard.Load() {
					return errors.New("the two are on different servers: the test shows nothing")
				}
				return errors.Join(take(ctx, s, charge1(p, here))[0].Err, take(ctx, s, charge1(p, gone))[0].Err)
			})
			sh := s.joiners[healthy].shard.Load()
			until(t, func(ctx context.Context) error {
				k.lose(ctx)
				return whatFails(take(ctx, s, charge1(p, gone))[0].Err)
			})
			before := used(t, s, p, here)
			var failed atomic.Int64
			total := 4000 / slowness
			storm(32, total, func(i int) bool {
				if i%2 == 0 {
					return mustTake(t, s, charge1(p, here))
				}
				if err := take(t.Context(), s, charge1(p, gone))[0].Err; unavailable(err) {
					failed.Add(1)
				} else if err != nil {
					t.Error(err)
				}
				return true
			})
			if n := used(t, s, p, here) - before; int(n) != total/2 {
				t.Errorf("%d of %d charges of a slot that is served were counted", n, total/2)
			}
			if sh.open.Load() || sh.fails.Load() != 0 {
				t.Errorf("the server is blamed for a slot: %d failures", sh.fails.Load())
			}
			if h := s.Health(); h.Up || h.Since.IsZero() || !h.Shards[0].Up || h.Shards[len(h.Shards)-1].Up {
				t.Errorf("health: %+v", h)
			}
			if failed.Load() == 0 {
				t.Error("no charge failed: the test shows nothing")
			}
			until(t, func(ctx context.Context) error {
				k.mend(ctx)
				return take(ctx, s, charge1(p, gone))[0].Err
			})
			mustTake(t, s, charge1(p, gone))
			if h := s.Health(); !h.Up {
				t.Errorf("the slot is served, and taken for unserved: %+v", h)
			}
			until(t, c.Healthy)
		})
	}
}

// TestSlotsWithoutAnOwnerBlameNoServer checks that a healthy server stays up while hash slots have no owner. To find an owner,
// the client asks all servers, and one of them doesn't answer here.
func TestSlotsWithoutAnOwnerBlameNoServer(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{})
	var log lines
	s := open(t, Options{URL: clusterURL(c), Logger: log.logger(), Timeout: 250 * time.Millisecond})
	answers(t, s)
	const most = 300               // of the 341 tags that the first server owns
	for _, node := range c.Nodes { // an error where gossip was faster
		_, _ = node.Do(t.Context(), "CLUSTER", "DELSLOTSRANGE", "0", strconv.Itoa(most*slots/tags-1))
	}
	until(t, func(context.Context) error {
		if _, n := s.unservedSlots(); n < most {
			return fmt.Errorf("%d slots are lost", n)
		}
		return nil
	})
	replica := c.Nodes[4]
	if err := replica.Stop(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second) // enough for three probes that fail, and for three that follow at once
	if err := replica.Cont(); err != nil {
		t.Fatal(err)
	}
	if n := log.count("can't be reached"); n > 0 {
		t.Errorf("the server was lost %d times", n)
	}
}

// whatFails returns nil if a charge failed.
func whatFails(err error) error {
	if err == nil {
		return errors.New("the slot is still served")
	}
	return nil
}

// TestAStartWithoutTheNodesSlot checks that a node that was given the secret doesn't need the hash slot in which nodes are
// counted.
func TestAStartWithoutTheNodesSlot(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{Config: []string{"cluster-require-full-coverage no"}})
	slot, err := c.Slot(t.Context(), "weir{nodes}")
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range c.Nodes {
		_, _ = node.Do(t.Context(), "CLUSTER", "DELSLOTS", fmt.Sprint(slot)) // replicas refuse
	}
	s := open(t, Options{URL: clusterURL(c), Secret: []byte("a secret")})
	p := policy(t, "p", counter.TokenBucket, 10, time.Hour)
	for tag := range 10 {
		until(t, func(ctx context.Context) error { return take(ctx, s, charge1(p, tagged(s, 100*tag, "s")))[0].Err })
	}
	if h := s.Health(); !h.Up || h.Nodes != 1 {
		t.Errorf("%+v", h)
	}
}

// TestSlotsThatComeBackAreOneLine checks that hash slots that come back at the same time are logged in one line, or in one for
// each round of probes.
func TestSlotsThatComeBackAreOneLine(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.Options{})
	var log lines
	s := open(t, Options{URL: clusterURL(c), Logger: log.logger()})
	answers(t, s)
	for tag := range 300 {
		s.joiners[tag].slot.trip(errors.New("planted"))
	}
	until(t, func(context.Context) error {
		if _, n := s.unservedSlots(); n > 0 || log.count("served again") == 0 {
			return fmt.Errorf("%d slots are lost", n)
		}
		return nil
	})
	if n := log.count("served again"); n > 30 {
		t.Errorf("300 slots come back in %d lines", n)
	}
}
