// Package rediscall runs scripts on Redis, for counters and for rules: by their hash, and again
// where that is safe. The caller's context is the budget, and a [Policy] says what is safe.
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

// Script is Lua with the hash by which Redis knows it.
type Script struct {
	Body, SHA string
	// Apart: every call has a connection of its own, so that no check waits behind a whole document. The client
	// takes it for a command that blocks, so it may take longer than others.
	Apart bool
}

// NewScript joins files of a folder "lua".
func NewScript(files embed.FS, names ...string) *Script {
	var body []byte
	for _, name := range names {
		b, err := files.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // it is embedded
		}
		body = append(body, b...)
	}
	sum := sha1.Sum(body)
	return &Script{Body: string(body), SHA: hex.EncodeToString(sum[:])}
}

// Policy says after which errors a script is sent again, and how soon.
type Policy struct {
	After          func(error) Next
	first, slowest time.Duration // between attempts
}

// Next is what to do after an error.
type Next uint8

const (
	GiveUp   Next = iota // it may have run, or will fail the same way
	WithBody             // Redis doesn't know the script yet
	Later                // it may succeed in a moment
)

// The policies: Once is for a script that must not run twice, Twice for one that may.
var (
	Once  = Policy{afterOnce, time.Millisecond, 20 * time.Millisecond}
	Twice = Policy{afterTwice, 10 * time.Millisecond, 300 * time.Millisecond}
)

// afterOnce is the list of errors after which a script certainly did not run. After any other, and
// above all after a lost connection or a time-out, it may have.
func afterOnce(err error) Next {
	if re, is := rueidis.IsRedisErr(err); is {
		return afterReply(re)
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, rueidis.ErrNoSlot) {
		return Later
	}
	return GiveUp
}

// afterTwice gives up only where Redis would answer the same again.
func afterTwice(err error) Next {
	if re, is := rueidis.IsRedisErr(err); is {
		return afterReply(re)
	}
	return Later
}

func afterReply(re *rueidis.RedisError) Next {
	if re.IsNoScript() {
		return WithBody
	}
	_, moved := re.IsMoved()
	_, ask := re.IsAsk()
	code, _, _ := strings.Cut(re.Error(), " ")
	if moved || ask || re.IsTryAgain() || re.IsClusterDown() || re.IsLoading() || code == "READONLY" || code == "MASTERDOWN" {
		return Later
	}
	return GiveUp
}

// Redis knows the client to use now. It is asked for each call: Sentinels may have named another primary.
type Redis interface {
	Client() (rueidis.Client, error)
}

// Run runs the script on keys of one slot until Redis has answered, the policy gives up, or ctx ends.
func (s *Script) Run(ctx context.Context, redis Redis, p Policy, keys []string, args ...string) (rueidis.RedisMessage, error) {
	body, pause := s.Apart, p.first
	var told error // what Redis said says more than that time ran out while it was asked again
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
		switch p.After(err) {
		case GiveUp:
			return reply, err
		case WithBody:
			body = true
		case Later:
			if !Sleep(ctx, Jittered(pause)) {
				return reply, err
			}
			told = err
			pause = min(2*pause, p.slowest)
		}
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

// Sleep waits, and reports false if the context ended instead.
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

// Jittered is at most d, and at least three quarters of it: nodes that lost the same Redis don't come
// back in step, nor later than was promised.
func Jittered(d time.Duration) time.Duration { return d - rand.N(d/4+1) }
