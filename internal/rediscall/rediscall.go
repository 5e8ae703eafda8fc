// Package rediscall runs scripts on Redis by their hashes. It retries calls if a [Policy] says that this is safe, until
// the caller's context ends.
package rediscall

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/rueidis"
)

// Script is a Lua script, and the hash by which Redis caches it.
type Script struct {
	Body, SHA string
	// Apart makes each call use its own connection, so that checks don't wait behind large documents. The client treats
	// the call like a blocking command, which may take longer.
	Apart bool
}

// NewScript joins files of the folder "lua" to one Script.
func NewScript(files embed.FS, names ...string) *Script {
	var body []byte
	for _, name := range names {
		b, err := files.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // can't happen: the files are embedded
		}
		body = append(body, b...)
	}
	sum := sha1.Sum(body)
	return &Script{Body: string(body), SHA: hex.EncodeToString(sum[:])}
}

// Policy says after which errors a script is retried, and how soon.
type Policy struct {
	Again          func(error) bool
	first, slowest time.Duration // pause between attempts
}

// Once is the policy for scripts that must not run twice, and Twice for scripts that may.
var (
	Once  = Policy{againOnce, time.Millisecond, 20 * time.Millisecond}
	Twice = Policy{againTwice, 10 * time.Millisecond, 300 * time.Millisecond}
)

// Unless returns a policy that doesn't retry after errors for which given returns true.
func (p Policy) Unless(given func(error) bool) Policy {
	again := p.Again
	p.Again = func(err error) bool { return !given(err) && again(err) }
	return p
}

// againOnce reports whether an error proves that the script didn't run, so that it may be retried. After any other
// error, such as a lost connection or a timeout, the script may have run.
func againOnce(err error) bool {
	if re, is := rueidis.IsRedisErr(err); is {
		return afterReply(re)
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, rueidis.ErrNoSlot)
}

// againTwice reports whether another attempt may succeed. It returns false only for replies that Redis would repeat.
func againTwice(err error) bool {
	re, is := rueidis.IsRedisErr(err)
	return !is || afterReply(re)
}

func afterReply(re *rueidis.RedisError) bool {
	_, moved := re.IsMoved()
	_, ask := re.IsAsk()
	code, _, _ := strings.Cut(re.Error(), " ")
	return moved || ask || re.IsTryAgain() || re.IsClusterDown() || re.IsLoading() || code == "READONLY" || code == "MASTERDOWN"
}

// Redis provides the client. Client is called for each attempt, because Sentinels may have named another primary.
type Redis interface {
	Client() (rueidis.Client, error)
}

// Run runs the script on keys of one hash slot until Redis answers, the policy gives up, or ctx ends.
func (s *Script) Run(ctx context.Context, redis Redis, p Policy, keys []string, args ...string) (rueidis.RedisMessage, error) {
	body, pause := s.Apart, p.first
	var told error // an earlier error from Redis; it explains more than a timeout during a retry
	for {
		c, err := redis.Client()
		if err != nil {
			return rueidis.RedisMessage{}, err
		}
		reply, err := c.Do(ctx, s.command(c, body, keys, args)).ToMessage()
		if err == nil {
			return reply, nil
		}
		if told != nil && ctx.Err() != nil {
			return reply, told
		}
		if re, is := rueidis.IsRedisErr(err); is && re.IsNoScript() {
			body = true // send the whole script: Redis hasn't cached it
			continue
		}
		if !p.Again(err) || !Sleep(ctx, Jittered(pause)) {
			return reply, err
		}
		told = err
		pause = min(2*pause, p.slowest)
	}
}

func (s *Script) command(c rueidis.Client, body bool, keys, args []string) rueidis.Completed {
	switch {
	case s.Apart:
		return c.B().Arbitrary("EVAL", s.Body, strconv.Itoa(len(keys))).Keys(keys...).Args(args...).Blocking()
	case body:
		return c.B().Eval().Script(s.Body).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
	}
	return c.B().Evalsha().Sha1(s.SHA).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
}

// Sleep waits for d. It returns false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Jittered returns a random duration from three quarters of d to d, so that nodes don't retry at the same times.
func Jittered(d time.Duration) time.Duration { return d - rand.N(d/4+1) }
