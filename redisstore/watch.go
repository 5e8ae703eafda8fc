package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/patient"
	"github.com/weirhq/weir/internal/rediscall"
)

// lookEvery is how often every shard is looked at, at least.
const lookEvery = time.Second

// watch looks at every shard that no check has found well since the last time, also when none come. Without it a node that has
// no checks to make would say that all is well, and fail its next ones. A shard that is gone or silent is found lost within
// lookEvery and three tries. That doesn't wait for the heartbeat, which has longer and tells of one shard alone.
func (s *Store) watch() {
	before := map[*shard]uint64{}
	for {
		now := map[*shard]uint64{}
		var looks sync.WaitGroup
		for _, sh := range s.shards() {
			now[sh] = sh.tally.answered()
			if last, known := before[sh]; !known || last == now[sh] {
				looks.Go(func() { s.look(sh) }) // one that is silent must not keep the others waiting
			}
		}
		if s.address.cluster {
			looks.Go(s.lookAtSlots)
		}
		looks.Wait()
		before = now
		if !rediscall.Sleep(s.life, rediscall.Jittered(lookEvery)) {
			return
		}
	}
}

// look tries a shard until it takes a check, or has failed often enough to be given up. It pauses in between: a server that
// falters for a moment isn't lost.
func (s *Store) look(sh *shard) {
	for !sh.open.Load() {
		used, err := s.try(sh)
		switch {
		case s.life.Err() != nil || !used || ofSlot(err):
			return // it is well, as far as this can tell
		case err == nil:
			sh.succeeded()
			return
		case sh.failed(err):
			s.opened(sh)
			return
		}
		if !rediscall.Sleep(s.life, rediscall.Jittered(probeEvery)) {
			return
		}
	}
}

// probed is the limit of the counter that a probe charges.
var probed = func() *counter.Policy {
	p, err := counter.NewPolicy("probe", counter.PerSecond(1_000_000))
	if err != nil {
		panic(err) // there is such a limit
	}
	return p
}()

// probe looks whether a shard takes checks again, until it does or nobody uses it any more.
func (s *Store) probe(sh *shard) {
	for rediscall.Sleep(s.life, rediscall.Jittered(probeEvery)) {
		used, err := s.try(sh)
		if !used {
			return
		}
		if err == nil {
			lost := s.shardHealth(sh, true)
			sh.close()
			s.logger.Info("redis is back", "shard", lost.Name, "lost_for", time.Since(lost.Since).Round(time.Millisecond).String())
			return
		}
		text := err.Error()
		sh.cause.Store(&text)
	}
}

// try makes a check of a shard: one that takes other writes may still refuse a check, for want of a permission. It has the
// budget of a check, in the node's own time: a server that is slower would be lost again at once, and a late node must be able
// to find its store. Nobody uses a shard that has no slots any more.
func (s *Store) try(sh *shard) (used bool, err error) {
	tag := s.tagOf(sh)
	if tag < 0 {
		return false, nil
	}
	return true, s.tryTag(tag, rediscall.Once)
}

// tryTag makes a check of a tag, by Redis' clock.
func (s *Store) tryTag(tag int, policy rediscall.Policy) error {
	var c call
	c.encode([]*act{{charges: []charge{{policy: probed, key: s.names.Load().probe(tag), n: 1}}}}, 0, s.leastTTL, s.peers.id)
	ctx, cancel := patient.WithTimeout(s.life, s.timeout)
	defer cancel()
	_, err := decide.Run(ctx, s, policy, c.keys, rueidis.BinaryString(c.body))
	if late := ctx.Err(); late != nil && (err == nil || errors.Is(err, late)) {
		err = context.Cause(ctx)
	}
	return err
}
