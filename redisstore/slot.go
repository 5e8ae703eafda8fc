package redisstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/internal/rediscall"
)

// ofSlot reports whether an error concerns one hash slot and not its server: no server has the slot, two servers redirect to
// each other, or the slot's keys are on two servers.
func ofSlot(err error) bool {
	var re *rueidis.RedisError
	if !errors.As(err, &re) {
		return errors.Is(err, rueidis.ErrNoSlot) // the client knows of no server for it
	}
	_, moved := re.IsMoved()
	_, ask := re.IsAsk()
	return moved || ask || re.IsTryAgain() || re.IsClusterDown() && strings.Contains(re.Error(), "slot")
}

// slotAtFault reports whether an error concerns the joiner's hash slot and not its server. If the hash slot has no owner, that
// includes timeouts, since the client asks all servers for the owner, and any of them may be slow.
func (l *joiner) slotAtFault(err error) bool { return ofSlot(err) || l.unowned.Load() }

// lookAtSlots probes the hash slots that have no server, according to calls or to the servers. Many may be without an owner,
// so the first of them that isn't served stands for all. It reports whether a slot that has an owner isn't served yet.
func (s *Store) lookAtSlots() (again bool) {
	var nobody error
	lost, regained, begun := 0, 0, time.Now()
	for _, tag := range rand.Perm(len(s.joiners)) {
		l := &s.joiners[tag]
		unowned, open := l.unowned.Load(), l.slot.open.Load()
		if !unowned && !open || l.shard.Load().open.Load() { // if the server is lost, its own breaker is open
			continue
		}
		err := nobody
		if !unowned || err == nil {
			if time.Since(begun) > lookEvery {
				continue
			}
			err = s.tryTag(tag, atOnce) // slots without an owner are tried, too: servers that name none may be wrong
		}
		switch {
		case err == nil && open:
			l.slot.close()
			regained++
		case err != nil && unowned && s.life.Err() == nil:
			if nobody = err; l.slot.trip(err) {
				lost++
			}
		case err != nil:
			again = true
		}
	}
	if regained > 0 { // many come back at once, and are logged as one line
		s.logger.Info("slots of the Cluster are served again", "slots", regained)
	}
	if lost > 0 {
		s.logger.Warn("no server serves some slots of the Cluster", "slots", lost, "error", nobody)
	}
	return again
}

// atOnce is the policy of a call that isn't retried, because its error is the answer.
var atOnce = rediscall.Once.Unless(func(error) bool { return true })

// unservedSlots summarizes the hash slots that no server serves, and counts them.
func (s *Store) unservedSlots() (h ShardHealth, n int) {
	for i := range s.joiners {
		b := &s.joiners[i].slot
		if !b.open.Load() {
			continue
		}
		n++
		if since := time.UnixMicro(b.since.Load()); h.Since.IsZero() || since.Before(h.Since) {
			h.Since, h.Error = since, b.unavailable().Error()
		}
	}
	if n > 0 {
		for _, sh := range s.shards() {
			h.Keys += max(0, sh.keys.Load())
		}
		h.Keys = (h.Keys*int64(n) + int64(len(s.joiners)) - 1) / int64(len(s.joiners)) // keys are spread evenly
	}
	h.Name = fmt.Sprintf("%d of %d slots in use, without a server", n, len(s.joiners))
	return h, n
}
