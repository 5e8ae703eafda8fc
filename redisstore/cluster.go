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
)

var errNoSlots = errors.New("the Cluster serves no slots")

// mapSlots asks one server after another who owns the hash slots, until one answers.
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

// askOwners asks a server which address serves each tag's hash slot. "" means that no server does.
func askOwners(ctx context.Context, node rueidis.Client, timeout time.Duration) (owners [tags]string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ranges, err := node.Do(ctx, node.B().ClusterSlots().Build()).ToArray()
	if err == nil && len(ranges) == 0 {
		err = errNoSlots
	}
	for _, m := range ranges { // first slot, last slot, primary, replicas
		r, errRange := m.ToArray()
		if len(r) < 3 {
			return owners, fmt.Errorf("CLUSTER SLOTS: a range with %d parts: %w", len(r), errRange)
		}
		primary, errPrimary := r[2].ToArray()
		if len(primary) < 2 {
			return owners, fmt.Errorf("CLUSTER SLOTS: a node with %d parts: %w", len(primary), errPrimary)
		}
		first, errFirst := r[0].AsInt64()
		last, errLast := r[1].AsInt64()
		host, errHost := primary[0].ToString()
		port, errPort := primary[1].AsInt64()
		if rueidis.IsRedisNil(errHost) { // cluster-preferred-endpoint-type is unknown-endpoint: the client uses the host that it asked
			errHost = nil
		}
		if err := errors.Join(errFirst, errLast, errHost, errPort); err != nil {
			return owners, fmt.Errorf("CLUSTER SLOTS: %w", err)
		}
		for tag := range owners {
			if slot := int64(slotOf(tagNames[tag])); slot >= first && slot <= last {
				owners[tag] = net.JoinHostPort(host, strconv.FormatInt(port, 10))
			}
		}
	}
	return owners, err
}

// assign gives each tag the shard that owns its hash slot. A new shard starts in doubt. A tag whose
// hash slot has no owner keeps its shard.
func (s *Store) assign(owners [tags]string) {
	known := map[string]*shard{}
	for _, sh := range s.shards() {
		if sh != s.first { // the first shard stands for all servers until Redis is reached, and may have the name of one
			known[sh.name] = sh
		}
	}
	var fresh []*shard
	for tag, owner := range owners {
		s.joiners[tag].unowned.Store(owner == "")
		if owner == "" {
			continue
		}
		sh := known[owner]
		if sh == nil {
			sh = newShard(owner)
			known[owner] = sh
			fresh = append(fresh, sh)
		}
		s.joiners[tag].shard.Store(sh)
	}
	if s.reached() {
		s.tendAll(fresh)
	}
}

// tagOf returns a tag that the shard serves now, or -1 if it serves none, because hash slots move. It picks one at random, since
// the server may not know all of its hash slots. It prefers tags whose hash slots have an owner: for others, the client asks all
// servers for the owner, and so a call may wait for another server.
func (s *Store) tagOf(sh *shard) (tag int) {
	tag = -1
	for _, at := range rand.Perm(len(s.joiners)) {
		if l := &s.joiners[at]; l.shard.Load() == sh {
			if tag = at; !l.unowned.Load() {
				break
			}
		}
	}
	return tag
}
