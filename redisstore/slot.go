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

// unserved is what a joiner knows of a slot that no server serves. Its charges fail at once until it is
// tried again; those of the other slots on the same server don't notice.
type unserved struct {
	since, until time.Time
	err          error
}

// ofSlot: the error is about one slot, and its server is well. No server has the slot, each says that another does, or its
// keys are in two places.
func ofSlot(err error) bool {
	var re *rueidis.RedisError
	if !errors.As(err, &re) {
		return errors.Is(err, rueidis.ErrNoSlot) // the client knows of no server for it
	}
	_, moved := re.IsMoved()
	_, ask := re.IsAsk()
	return moved || ask || re.IsTryAgain() || re.IsClusterDown() && strings.Contains(re.Error(), "slot")
}

// served says that a server took a call for its own.
func (l *joiner) served() {
	if l.missed.Load() == 0 {
		return
	}
	l.missed.Store(0)
	if l.unserved.Swap(nil) != nil {
		l.store.regained.Add(1)
	}
}

// failed says that no server did. After some of these in a row, charges fail at once for a moment.
func (l *joiner) failed(err error) {
	if l.missed.Add(1) >= opensAfter && l.lost(err) {
		l.store.logger.Warn("no server serves a slot of the Cluster", "slot", l.store.slotOf(l), "error", err)
		l.store.lookAgain()
	}
}

// lost has charges fail at once for a moment, and reports whether they didn't before.
func (l *joiner) lost(err error) bool {
	now := time.Now()
	u := &unserved{since: now, until: now.Add(rediscall.Jittered(probeEvery)), err: fmt.Errorf("%w: %w", ErrUnavailable, err)}
	before := l.unserved.Load()
	if before != nil {
		u.since = before.since
	}
	l.missed.Store(opensAfter) // so that a call that is served notices
	return l.unserved.CompareAndSwap(before, u) && before == nil
}

// lookAtSlots tries slots that lately had no server, and one of those that the servers say nobody has: with as many as may be
// without, that one stands for all.
func (s *Store) lookAtSlots() {
	defer func() {
		if n := s.regained.Swap(0); n > 0 { // many come back at once, and they are one line
			s.logger.Info("slots of the Cluster are served again", "slots", n)
		}
	}()
	var unowned []int
	begun := time.Now()
	for _, tag := range rand.Perm(len(s.joiners)) {
		l := &s.joiners[tag]
		switch {
		case l.shard.Load().open.Load(): // which says it all
		case l.unowned.Load():
			unowned = append(unowned, tag)
		case l.unserved.Load() != nil && time.Since(begun) < lookEvery:
			if err := s.tryTag(tag, atOnce); err == nil {
				l.served()
			} else if ofSlot(err) {
				l.failed(err)
			}
		}
	}
	if len(unowned) == 0 {
		return
	}
	err := s.tryTag(unowned[0], atOnce)
	if err == nil {
		s.joiners[unowned[0]].served() // servers that don't know may be wrong
	}
	if err == nil || !ofSlot(err) {
		return
	}
	n := 0
	for _, tag := range unowned {
		if s.joiners[tag].lost(err) {
			n++
		}
	}
	if n > 0 {
		s.logger.Warn("no server serves some slots of the Cluster", "slots", n, "error", err)
	}
}

// atOnce is the policy for a call whose error says what it is to find out.
var atOnce = func() rediscall.Policy {
	p := rediscall.Once
	p.After = func(err error) rediscall.Next {
		if rediscall.Once.After(err) == rediscall.WithBody {
			return rediscall.WithBody
		}
		return rediscall.GiveUp
	}
	return p
}()

// recent is for how long after it was last tried a slot is taken for unserved, where people look.
const recent = 10 * time.Second

// unservedSlots tells of the slots that no server serves, as charges and probes found lately.
func (s *Store) unservedSlots() (h ShardHealth, n int) {
	for i := range s.joiners {
		u := s.joiners[i].unserved.Load()
		if u == nil || time.Since(u.until) > recent {
			continue
		}
		n++
		if h.Since.IsZero() || u.since.Before(h.Since) {
			h.Since, h.Error = u.since, u.err.Error()
		}
	}
	if n > 0 {
		for _, sh := range s.shards() {
			h.Keys += max(0, sh.keys.Load())
		}
		h.Keys = (h.Keys*int64(n) + int64(len(s.joiners)) - 1) / int64(len(s.joiners)) // they are spread evenly
	}
	h.Name = fmt.Sprintf("%d of %d slots in use, without a server", n, len(s.joiners))
	return h, n
}

// slotOf is the slot of a joiner.
func (s *Store) slotOf(l *joiner) int {
	for tag := range s.joiners {
		if &s.joiners[tag] == l {
			return slotOf(tagNames[tag])
		}
	}
	return -1
}
