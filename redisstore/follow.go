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
	mapEvery   = time.Second            // between looks where shards are; while one can't be reached, probeEvery
	firstTry   = 50 * time.Millisecond  // between attempts to reach Redis at first
	slowestTry = 300 * time.Millisecond // likewise, after a while
)

// run reaches Redis, and stays in touch with it.
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

// connect tries until Redis is there, and reports false if the store was closed first.
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
		return nil // the other slots are served, and nothing in this one is needed
	}
	return err
}

// follow keeps the client where the primary is that Sentinels name, or keeps track of which server of a Cluster owns which tag,
// so that each has a breaker of its own.
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
		_ = s.locate(ctx) // what was known stays
		cancel()
	}
}

// locate finds the primary, or the owners of slots. It is called by one goroutine at a time.
func (s *Store) locate(ctx context.Context) error {
	old := s.client.Load()
	if old != nil && s.sentinels != nil && s.joiners[0].shard.Load().open.Load() {
		s.sentinels.next() // the one that was asked last may be cut off itself, or not know of a failover
	}
	if old == nil || s.sentinels != nil {
		c, err := newClient(ctx, s.address.option, s.sentinels)
		if err != nil {
			return err
		}
		if c != nil { // otherwise the primary is where it was
			s.client.Store(&c)
		}
		if c != nil && old != nil {
			s.logger.Info("redis has another primary", "store", s.address.shown, "primary", s.sentinels.primary)
			s.background(func() {
				rediscall.Sleep(s.life, 100*time.Millisecond) // so that calls which have just got the old client can still be sent
				(*old).Close()                                // which may wait a second for a server that is silent
			})
		}
	}
	if s.address.cluster {
		return s.mapSlots(ctx)
	}
	return nil
}

// newClient returns a client of the servers in an option. Under Sentinels that is the primary, or nil if it is where it was.
func newClient(ctx context.Context, o rueidis.ClientOption, all *sentinels) (rueidis.Client, error) {
	if all != nil {
		return all.find(ctx)
	}
	return rueidis.NewClient(o)
}

// guestShare is the part of a server's memory up to which guests get new counters: what they make up must leave room for
// the others.
const guestShare = 0.75

// weigh asks every server how full it is, how many keys it keeps, and whether it evicts them. Guests get no new counters while a
// server is nearly full. A server that doesn't answer counts as one with room, and takes no time of the others.
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
				_, _ = fmt.Sscanf(all[fmt.Sprint("db", s.address.option.SelectDB)], "keys=%d", &keys) // none: no line
				sh.keys.Store(keys)
				s.noteEviction(sh, all["maxmemory_policy"])
			}
		})
	}
	asked.Wait()
	s.tight.Store(tight.Load())
}

// info is what a server tells of itself, by name.
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
