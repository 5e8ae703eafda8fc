package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/weirhq/weir"
)

// ErrUnavailable is wrapped by the errors of charges that Redis couldn't decide.
var ErrUnavailable = errors.New("redis can't be reached")

// errFull is the error of a charge that fits, but would need a new counter. It says nothing about the others.
var errFull error = fullError{}

type fullError struct{}

func (fullError) Error() string        { return "redis is short of memory for new counters" }
func (fullError) Is(target error) bool { return target == ErrUnavailable || target == weir.ErrNoRoom }

// shard is a server that keeps a part of the keys, with a breaker in front: after
// some failures in a row nobody waits for it any more, while a probe looks
// whether it is back. It stands in front of the client because a client that
// queues can't be trusted with a deadline.
type shard struct {
	name  string
	fails atomic.Int32 // in a row; 1 until a call succeeded
	open  atomic.Bool
	since atomic.Int64 // when open changed, Unix µs
	cause atomic.Pointer[string]
}

func newShard(name string) *shard {
	sh := &shard{name: name}
	sh.fails.Store(1)
	return sh
}

// opensAfter is how many calls must fail in a row.
const opensAfter = 3

// probeEvery is the time between probes of a shard that can't be reached, about.
const probeEvery = 100 * time.Millisecond

func (sh *shard) unavailable() error {
	if c := sh.cause.Load(); c != nil {
		return fmt.Errorf("%w: %s", ErrUnavailable, *c)
	}
	return ErrUnavailable
}

func (sh *shard) succeeded() {
	if sh.fails.Load() != 0 {
		sh.fails.Store(0)
	}
}

// failed counts a failure, and reports whether the breaker opened with it.
func (sh *shard) failed(err error) bool {
	if sh.fails.Add(1) < opensAfter {
		return false
	}
	return sh.trip(err)
}

func (sh *shard) trip(err error) bool {
	text := err.Error()
	sh.cause.Store(&text)
	if !sh.open.CompareAndSwap(false, true) {
		return false
	}
	sh.since.Store(time.Now().UnixMicro())
	return true
}

func (sh *shard) close() {
	sh.fails.Store(0)
	sh.open.Store(false)
	sh.since.Store(time.Now().UnixMicro())
}

// again says what to do after an error.
type again uint8

const (
	never    again = iota // it may have run, or will fail the same way
	withBody              // Redis doesn't know the script yet
	later                 // it certainly didn't run, and may when asked in a moment
)

// retry is the list of errors after which the script certainly did not run. After
// any other, and above all after a lost connection or a time-out, it may have.
func retry(err error) again {
	if re, ok := rueidis.IsRedisErr(err); ok {
		if re.IsNoScript() {
			return withBody
		}
		if _, moved := re.IsMoved(); moved {
			return later
		}
		if _, ask := re.IsAsk(); ask || re.IsTryAgain() || re.IsClusterDown() || re.IsLoading() {
			return later
		}
		switch code(re) {
		case "READONLY", "MASTERDOWN":
			return later
		}
		return never
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, rueidis.ErrNoSlot) {
		return later
	}
	return never
}

// code is the first word of a Redis error.
func code(re *rueidis.RedisError) string {
	text := re.Error()
	for i := range len(text) {
		if text[i] == ' ' {
			return text[:i]
		}
	}
	return text
}

// call has the script decide acts of a lane before the context ends.
func (s *Store) call(ctx context.Context, l *lane, acts []*act) error {
	sh := l.shard.Load()
	again := retry
	if len(acts) > 1 {
		again = retryJoined
	}
	var c call // not reused: after a time-out the client may still be reading from it
	c.encode(acts, s.time(), s.leastTTL, s.peers.id)
	reply, err := s.decide(ctx, sh, again, c.keys, rueidis.BinaryString(c.body))
	switch {
	case err == nil:
		sh.succeeded()
		l.served()
		dropped, full, err := decode(reply, acts)
		if full {
			s.tell("redis is short of memory: new counters aren't written, for clients that aren't verified or for anybody", "shard", sh.name)
		}
		if len(dropped) > 0 {
			s.tell("data of a counter made no sense, and was dropped", "shard", sh.name, "key", dropped[0])
		}
		return err
	case len(acts) > 1 && scattered(err): // they are sent again, one by one
	case ofSlot(err):
		l.failed(err)
	case sh.failed(err):
		s.opened(sh)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// decide runs the script, or returns an error when the context ends first. The client heeds deadlines unless it has to
// connect: a second caller waits for as long as the first one does. So a server that is in doubt is called by a goroutine
// that can be left behind. The others are spared what that costs.
func (s *Store) decide(ctx context.Context, sh *shard, again func(error) again, keys []string, body string) (string, error) {
	if sh.fails.Load() == 0 {
		return s.eval(ctx, again, decide, keys, body).ToString()
	}
	type result struct {
		reply string
		err   error
	}
	done := make(chan result, 1)
	s.background(func() {
		reply, err := s.eval(ctx, again, decide, keys, body).ToString()
		done <- result{reply, err}
	})
	select {
	case r := <-done:
		return r.reply, r.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// scattered: the slot is moving, and the keys of the call are in two places. Those of one act seldom are.
func scattered(err error) bool {
	var re *rueidis.RedisError
	return errors.As(err, &re) && re.IsTryAgain()
}

// retryJoined is retry for acts that can be sent one by one instead.
func retryJoined(err error) again {
	if scattered(err) {
		return never
	}
	return retry(err)
}

// eval runs a script, again where that is safe, until the context ends.
func (s *Store) eval(ctx context.Context, retry func(error) again, sc script, keys []string, args ...string) rueidis.RedisResult {
	body, pause := false, time.Millisecond
	var told *rueidis.RedisResult // what Redis said says more than that time ran out while it was asked again
	for {
		client := *s.client.Load() // each time: Sentinels may have named another primary
		var cmd rueidis.Completed
		if body {
			cmd = client.B().Eval().Script(sc.body).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
		} else {
			cmd = client.B().Evalsha().Sha1(sc.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
		}
		r := client.Do(ctx, cmd)
		err := r.Error()
		if err == nil {
			return r
		}
		if told != nil && ctx.Err() != nil {
			return *told
		}
		switch retry(err) {
		case never:
			return r
		case withBody:
			body = true
		case later:
			if !sleep(ctx, pause) {
				return r
			}
			told = &r
			pause = min(2*pause, 20*time.Millisecond)
		}
	}
}

// sleep waits, and reports false if the context ended instead.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// jittered keeps nodes that lost the same Redis from coming back in step.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// opened tells of a shard that was lost, and begins to look for it.
func (s *Store) opened(sh *shard) {
	if s.life.Err() != nil {
		return // it was we who left
	}
	s.logger.Warn("redis can't be reached", "shard", sh.name, "error", *sh.cause.Load())
	s.lookAgain()
	s.background(func() { s.probe(sh) })
}

// lookAgain has it looked up now who serves what.
func (s *Store) lookAgain() {
	select {
	case s.lost <- struct{}{}:
	default: // it is going to be
	}
}

// probed is the limit of the counter that a probe charges.
var probed = func() *weir.Policy {
	p, err := weir.NewPolicy("probe", weir.PerSecond(1_000_000))
	if err != nil {
		panic(err) // there is such a limit
	}
	return p
}()

// probe looks whether a shard takes checks again, until it does or nobody uses it any more, by making one: a shard that
// takes other writes may still refuse a check, for want of a permission. It has the budget
// of a check, in the node's own time: a server that is slower would be lost again at once, and a late node must be
// able to find its store.
func (s *Store) probe(sh *shard) {
	for sleep(s.life, jittered(probeEvery)) {
		tag := s.tagOf(sh)
		if tag < 0 {
			return
		}
		var c call
		c.encode([]*act{{charges: []charge{{policy: probed, key: s.names.Load().probe(tag), n: 1}}}}, s.time(), s.leastTTL, s.peers.id)
		ctx, cancel := patient(s.life, s.timeout)
		err := s.eval(ctx, retry, decide, c.keys, rueidis.BinaryString(c.body)).Error()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		cancel()
		if err == nil {
			sh.close()
			s.logger.Info("redis is back", "shard", sh.name)
			return
		}
		text := err.Error()
		sh.cause.Store(&text)
	}
}
