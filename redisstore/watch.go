package redisstore

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/patient"
	"github.com/weirhq/weir/internal/rediscall"
)

const (
	// lookEvery is the pause between probes of a shard that is well.
	lookEvery = time.Second
	// probeEvery is the pause between probes of a shard that is lost or in doubt.
	probeEvery = 100 * time.Millisecond
)

func (s *Store) tendAll(shards []*shard) {
	for _, sh := range shards {
		s.running.Go(func() { s.tend(sh) })
	}
}

// tend probes a shard for as long as it has hash slots, unless calls to it have just succeeded. Without probes, a node without
// checks wouldn't notice that a shard is lost, and its next checks would fail. A shard that is gone or silent is found lost
// within lookEvery and three tries. Heartbeats wouldn't do: they take longer, and reach only one shard.
func (s *Store) tend(sh *shard) {
	answered := uint64(0)
	for {
		pause := lookEvery
		if sh.doubted() { // a server that falters for a moment isn't lost, so the tries are apart
			pause = probeEvery
		}
		select {
		case <-time.After(rediscall.Jittered(pause)):
		case <-sh.opened:
			continue
		case <-s.life.Done():
			return
		}
		if now := sh.tally.answered(); now != answered && !sh.doubted() {
			answered = now
			continue
		}
		tag := s.tagOf(sh)
		if tag < 0 {
			return // its hash slots have moved
		}
		err := s.tryTag(tag, rediscall.Once)
		switch open := sh.open.Load(); {
		case s.life.Err() != nil:
			return
		case err == nil && open:
			lost := s.shardHealth(sh)
			sh.close()
			s.logger.Info("redis is back", "shard", lost.Name, "lost_for", time.Since(lost.Since).Round(time.Millisecond).String())
		case err == nil:
			sh.succeeded()
		case s.joiners[tag].slotAtFault(err) && !open: // the server is well, as far as this can tell
		case sh.failed(err):
			s.lose(sh)
		}
	}
}

// probed is the policy of the counter that probes charge.
var probed, _ = counter.NewPolicy("probe", counter.PerSecond(1_000_000)) // there is such a limit

// tryTag makes a check with a tag, by Redis' clock, because a server that accepts other writes may still lack a permission that
// checks need. It has the budget of a check, so a server that is too slow for checks isn't taken for well. The budget counts the
// node's own time, so a delayed node doesn't blame the server.
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
