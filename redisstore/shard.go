package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/rediscall"
)

// ErrUnavailable is wrapped by the errors of charges that Redis couldn't decide.
var ErrUnavailable = errors.New("redis can't be reached")

// errFull is the error of a charge that fits, but needs a new counter for which Redis has no memory. Other charges aren't
// affected.
var errFull error = fullError{}

type fullError struct{}

func (fullError) Error() string { return "redis is short of memory for new counters" }
func (fullError) Is(target error) bool {
	return target == ErrUnavailable || target == counter.ErrNoRoom
}

const shortOfMemory = "redis is short of memory: new counters aren't written, for clients that aren't verified or for anybody"

// shard is a server that keeps part of the keys. Its breaker is asked before the client, because a client that queues calls may
// miss their deadlines.
type shard struct {
	breaker
	name string
	keys atomic.Int64 // how many keys it has, by its last answer; -1 until then
	// evicts is the maxmemory-policy by which the server evicts keys, from its last answer. It is nil before the first answer, and
	// "" if the server evicts nothing.
	evicts atomic.Pointer[string]
	tally  tally
	opened signal // set when the breaker opens
}

func newShard(name string) *shard {
	sh := &shard{name: name, opened: make(signal, 1)}
	sh.fails.Store(1) // until a call succeeds, it is in doubt
	sh.keys.Store(-1)
	return sh
}

// call has the script decide acts of a joiner. It gives up when the context ends.
func (s *Store) call(ctx context.Context, l *joiner, acts []*act) error {
	sh := l.shard.Load()
	policy := rediscall.Once
	if len(acts) > 1 {
		policy = joined
	}
	c := call{clock: s.Now} // not reused: after a timeout the client may still be reading from it
	c.encode(acts, s.time(), s.leastTTL, s.peers.id)
	begun := time.Now()
	reply, err := s.decide(ctx, sh, policy, c.keys, rueidis.BinaryString(c.body))
	sh.tally.count(len(acts), time.Since(begun), err)
	switch {
	case err == nil:
		sh.succeeded()
		l.slot.succeeded()
		dropped, full, err := decode(reply, acts)
		if full {
			s.tell(shortOfMemory, "shard", sh.name)
		}
		if len(dropped) > 0 {
			s.tell("data of a counter made no sense, and was dropped", "shard", sh.name, "key", dropped[0])
		}
		return err
	case len(acts) > 1 && scattered(err): // they are sent again, one by one
	case l.slotAtFault(err):
		if l.slot.failed(err) {
			s.logger.Warn("no server serves a slot of the Cluster", "slot", slotOf(tagNames[l.tag]), "error", err)
			s.lost.set()
		}
	case sh.failed(err):
		s.lose(sh)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// decide runs the script, and returns an error if the context ends first. The client ignores deadlines while it connects for
// another caller. So if a server is in doubt, a goroutine makes the call and can be left behind. For other servers, that would
// cost too much.
func (s *Store) decide(ctx context.Context, sh *shard, p rediscall.Policy, keys []string, body string) (string, error) {
	if sh.fails.Load() == 0 {
		return run(ctx, s, p, keys, body)
	}
	type result struct {
		reply string
		err   error
	}
	done := make(chan result, 1)
	var told atomic.Pointer[error] // Redis' error explains more than the timeout of a retry
	p = p.Unless(func(err error) bool {
		told.Store(&err)
		return false
	})
	s.background(func() {
		reply, err := run(ctx, s, p, keys, body)
		done <- result{reply, err}
	})
	select {
	case r := <-done:
		return r.reply, r.err
	case <-ctx.Done():
		if err := told.Load(); err != nil {
			return "", *err
		}
		return "", ctx.Err()
	}
}

func run(ctx context.Context, s *Store, p rediscall.Policy, keys []string, body string) (string, error) {
	m, err := decide.Run(ctx, s, p, keys, body)
	if err != nil {
		return "", err
	}
	return m.ToString()
}

// scattered reports whether a call failed because a hash slot is moving and the call's keys are on two servers. The keys of one
// act seldom are.
func scattered(err error) bool {
	var re *rueidis.RedisError
	return errors.As(err, &re) && re.IsTryAgain()
}

// joined is the policy of a call with several acts. If they are scattered, it isn't retried, since the acts can be sent one by
// one.
var joined = rediscall.Once.Unless(scattered)

// lose logs that a shard was lost, and starts the search for it.
func (s *Store) lose(sh *shard) {
	if s.life.Err() != nil {
		return // the store was closed; Redis isn't lost
	}
	h := s.shardHealth(sh)
	args := []any{"shard", h.Name, "since", h.Since, "error", *sh.cause.Load()}
	if h.Keys > 0 {
		args = append(args, "keys_affected", h.Keys)
	}
	s.logger.Warn("redis can't be reached", args...)
	s.lost.set()
	sh.opened.set()
}

// signal wakes a goroutine: it holds a value while there is something to do.
type signal chan struct{}

// set sends the signal, unless it is already set. It never waits.
func (s signal) set() {
	select {
	case s <- struct{}{}:
	default: // it is set
	}
}
