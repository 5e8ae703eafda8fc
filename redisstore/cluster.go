package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/internal/rediscall"
)

// mapEvery is how often the owners of slots are looked up; while one can't be reached, probeEvery.
const mapEvery = time.Second

// follow keeps track of which server owns which tag, so that each has a breaker of
// its own. The client finds the servers by itself.
func (s *Store) follow() {
	for s.await(mapEvery) {
		ctx, cancel := context.WithTimeout(s.life, time.Second)
		_ = s.mapSlots(ctx) // what was known stays
		cancel()
	}
}

// await waits for its turn to look where shards are, for less time while one can't be
// reached, and reports false if the store was closed.
func (s *Store) await(pause time.Duration) bool {
	for i := range s.joiners {
		if s.joiners[i].shard.Load().open.Load() {
			pause = probeEvery
		}
	}
	timer := time.NewTimer(rediscall.Jittered(pause))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.lost:
		return true
	case <-s.life.Done():
		return false
	}
}

var errNoSlots = errors.New("the Cluster serves no slots")

// mapSlots asks one server after another which servers own the slots, until one answers.
func (s *Store) mapSlots(ctx context.Context) error {
	err := errNoSlots
	for _, node := range (*s.client.Load()).Nodes() {
		var owners [tags]string
		if owners, err = askOwners(ctx, node, s.timeout); err == nil {
			s.assign(owners)
			return nil
		}
	}
	return err
}

func askOwners(ctx context.Context, node rueidis.Client, timeout time.Duration) (owners [tags]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ranges, err := node.Do(ctx, node.B().ClusterSlots().Build()).ToArray()
	if err != nil {
		return owners, err
	}
	if len(ranges) == 0 {
		return owners, errNoSlots
	}
	for _, r := range ranges {
		first, last, owner, err := readRange(r)
		if err != nil {
			return owners, err
		}
		for tag := range owners {
			if slot := int64(slotOf(tagNames[tag])); slot >= first && slot <= last {
				owners[tag] = owner
			}
		}
	}
	return owners, nil
}

// readRange reads a range of slots and the address of its primary.
func readRange(m rueidis.RedisMessage) (first, last int64, owner string, err error) {
	r, err := m.ToArray()
	if err != nil || len(r) < 3 {
		return 0, 0, "", fmt.Errorf("CLUSTER SLOTS: a range with %d parts: %w", len(r), err)
	}
	node, err := r[2].ToArray()
	if err != nil || len(node) < 2 {
		return 0, 0, "", fmt.Errorf("CLUSTER SLOTS: a node with %d parts: %w", len(node), err)
	}
	first, _ = r[0].AsInt64()
	last, _ = r[1].AsInt64()
	host, _ := node[0].ToString()
	port, err := node[1].AsInt64()
	return first, last, net.JoinHostPort(host, strconv.FormatInt(port, 10)), err
}

// assign gives each tag to the shard that owns it. A server that is new is in doubt, and no more.
// A tag without an owner stays where it was.
func (s *Store) assign(owners [tags]string) {
	known := map[string]*shard{}
	for i := range s.joiners {
		sh := s.joiners[i].shard.Load()
		known[sh.name] = sh
	}
	for tag, owner := range owners {
		s.joiners[tag].unowned.Store(owner == "")
		if owner == "" {
			continue
		}
		sh := known[owner]
		if sh == nil {
			sh = newShard(owner)
			known[owner] = sh
		}
		s.joiners[tag].shard.Store(sh)
	}
}

// tagOf is a tag that belongs to the shard now, or -1: slots move. It is any of them, since of one slot
// the server may know nothing.
func (s *Store) tagOf(sh *shard) int {
	from := rand.IntN(len(s.joiners))
	for i := range s.joiners {
		if tag := (from + i) % len(s.joiners); s.joiners[tag].shard.Load() == sh {
			return tag
		}
	}
	return -1
}
