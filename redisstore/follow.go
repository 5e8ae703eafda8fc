package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/internal/rediscall"
)

const (
	mapEvery   = time.Second            // how often shards are located; probeEvery while one can't be reached
	firstTry   = 50 * time.Millisecond  // the first pause between attempts to reach Redis at startup
	slowestTry = 300 * time.Millisecond // the longest of these pauses
)

// run connects to Redis, and then sends heartbeats until the store is closed.
func (s *Store) run() {
	if !s.connect() {
		return
	}
	s.weigh()
	s.first.close()
	close(s.ready)
	s.endTry()
	s.logger.Info("connected", "store", s.address.shown, "nodes", s.Nodes())
	s.tendAll(s.shards())
	if s.address.cluster || s.sentinels != nil {
		s.running.Go(s.follow)
	}
	beats := time.NewTicker(rediscall.Jittered(beatEvery))
	defer beats.Stop()
	for {
		s.hear()
		select {
		case <-beats.C:
			s.weigh()
		case <-s.peers.news:
		case <-s.life.Done():
			return
		}
	}
}

// connect tries until Redis is reached. It reports false if the store was closed first.
func (s *Store) connect() bool {
	for pause := firstTry; ; pause = min(2*pause, slowestTry) {
		err := s.reach()
		if err == nil {
			return true
		}
		if text := err.Error(); text != *s.first.cause.Load() {
			s.logger.Warn("redis can't be reached", "store", s.address.shown, "error", text)
			s.first.cause.Store(&text)
		}
		s.endTry()
		if !rediscall.Sleep(s.life, rediscall.Jittered(pause)) {
			return false
		}
	}
}

func (s *Store) reach() error {
	ctx, cancel := context.WithTimeout(s.life, time.Second)
	defer cancel()
	if err := s.locate(ctx); err != nil {
		return err
	}
	err := s.beat(ctx)
	if s.peers.given && err != nil && ofSlot(err) {
		return nil // only the heartbeat's hash slot isn't served, and nothing in it is needed
	}
	return err
}

// follow keeps the client on the primary that Sentinels name. In a Cluster, it keeps track of which server owns which tag, so
// that each server has a breaker of its own.
func (s *Store) follow() {
	if s.address.cluster {
		s.running.Go(func() {
			for pause := lookEvery; rediscall.Sleep(s.life, rediscall.Jittered(pause)); {
				if pause = lookEvery; s.lookAtSlots() {
					pause = probeEvery
				}
			}
		})
	} else {
		o := s.sentinels.option
		for _, addr := range o.InitAddress {
			s.running.Go(func() { s.hearFailovers(o, addr) })
		}
	}
	for {
		pause := mapEvery
		for _, sh := range s.shards() {
			if sh.open.Load() {
				pause = probeEvery
			}
		}
		select {
		case <-time.After(rediscall.Jittered(pause)):
		case <-s.lost:
		case <-s.life.Done():
			return
		}
		ctx, cancel := context.WithTimeout(s.life, 3*time.Second)
		_ = s.locate(ctx) // on an error, the known locations stay
		cancel()
	}
}

// locate finds the primary, or the owners of hash slots. Only one goroutine calls it at a time.
func (s *Store) locate(ctx context.Context) error {
	old := s.client.Load()
	if old != nil && s.sentinels != nil && s.joiners[0].shard.Load().open.Load() {
		s.sentinels.next() // the Sentinel that was asked last may be cut off itself, or not know of a failover
	}
	if old == nil || s.sentinels != nil {
		c, err := newClient(ctx, s.address.option, s.sentinels)
		if err != nil {
			return err
		}
		if c != nil { // nil means that the primary hasn't moved
			s.client.Store(&c)
		}
		if c != nil && old != nil {
			s.logger.Info("redis has another primary", "store", s.address.shown, "primary", s.sentinels.primary)
			s.background(func() {
				rediscall.Sleep(s.life, 100*time.Millisecond) // so that calls that have just got the old client can still be sent
				(*old).Close()                                // may wait a second for a silent server
			})
		}
	}
	if s.address.cluster {
		return s.mapSlots(ctx)
	}
	return nil
}

// newClient connects to the servers in an option. Under Sentinels it returns a client of the primary, or nil if the primary
// hasn't moved.
func newClient(ctx context.Context, o rueidis.ClientOption, all *sentinels) (rueidis.Client, error) {
	if all != nil {
		return all.find(ctx)
	}
	return rueidis.NewClient(o)
}

// guestShare is how full a server may be before guests get no new counters. Guests are clients that could make up their keys,
// so these keys must leave room for others.
const guestShare = 0.75

// weigh asks every server how full it is, how many keys it has, and whether it evicts them. While a server is nearly full,
// guests get no new counters. A server that doesn't answer counts as one with room, and doesn't delay the others.
func (s *Store) weigh() {
	ctx, cancel := context.WithTimeout(s.life, time.Second)
	defer cancel()
	client := *s.client.Load()
	servers := map[string]rueidis.Client{s.first.name: client}
	if s.address.cluster {
		servers = client.Nodes()
	}
	shards := map[string]*shard{}
	for _, sh := range s.shards() {
		shards[sh.name] = sh
	}
	var tight atomic.Bool
	var asked sync.WaitGroup
	for name, c := range servers {
		asked.Go(func() {
			all, err := info(ctx, c, "memory", "keyspace")
			if err != nil {
				return
			}
			used, _ := strconv.ParseFloat(all["used_memory"], 64)
			if most, _ := strconv.ParseFloat(all["maxmemory"], 64); most > 0 && used > guestShare*most {
				tight.Store(true)
			}
			if sh := shards[name]; sh != nil {
				var keys int64
				_, _ = fmt.Sscanf(all[fmt.Sprint("db", s.address.option.SelectDB)], "keys=%d", &keys) // an empty database has no line
				sh.keys.Store(keys)
				s.noteEviction(sh, all["maxmemory_policy"])
			}
		})
	}
	asked.Wait()
	s.tight.Store(tight.Load())
}

// info returns the fields of INFO by name.
func info(ctx context.Context, c rueidis.Client, sections ...string) (map[string]string, error) {
	text, err := c.Do(ctx, c.B().Info().Section(sections...).Build()).ToString()
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		all[name] = value
	}
	return all, nil
}

// noteEviction records a server's maxmemory-policy, and logs a change once. Health and metrics go on showing the policy.
func (s *Store) noteEviction(sh *shard, policy string) {
	if policy == "noeviction" {
		policy = ""
	}
	switch before := sh.evicts.Swap(&policy); {
	case before != nil && *before == policy:
	case policy != "":
		s.logger.Warn("redis evicts counters when it is full, and their limits start from zero: set maxmemory-policy to noeviction",
			"shard", sh.name, "maxmemory_policy", policy)
	case before != nil:
		s.logger.Info("redis doesn't evict counters any more", "shard", sh.name)
	}
}

// Tight reports whether a server is nearly full, so that guests get no new counters.
func (s *Store) Tight() bool { return s.tight.Load() }
