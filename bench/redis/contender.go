package main

import (
	"context"
	"errors"
	"regexp"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// contender is one way to limit through Redis.
type contender struct {
	name     string
	open     func(ctx context.Context, e *env) (*instance, error)
	counters int // that one check charges
}

// with opens a contender for as long as f takes.
func (c *contender) with(ctx context.Context, e *env, f func(*instance) error) error {
	in, err := c.open(ctx, e)
	if err != nil {
		return err
	}
	defer in.close()
	return f(in)
}

// env is what contenders are measured with.
type env struct {
	server  *redistest.Server
	timeout time.Duration // of Weir's store; 0 means its default
	keys    workload.Keys
	used    int          // how many of the keys are checked
	seen    []scriptCall // what Weir's store sends for each key; nil until it is recorded
}

// instance is a contender with connections of its own.
type instance struct {
	// worker returns a check for the use of one goroutine.
	worker func() check
	close  func()
}

// check asks whether a request with the n-th key is allowed, and returns errRefused if it isn't. It gets no context, since
// one that can be cancelled makes some clients slower.
type check func(n uint32) error

var background = context.Background()

var errRefused = errors.New("refused")

const (
	storeName = "Weir store"
	checkName = "Weir whole check"
	tenName   = "Weir, ten counters a client"
	largeName = "Weir, ten large counters a client"
	bareName  = "Weir's EVALSHA, bare"
	redisRate = "redis_rate 10.0.1"
	goHash    = "go-redis, hash script"
	rueHash   = "rueidis, hash script"
)

// limit is a bucket of tokens, one of which comes back after each interval.
type limit struct {
	tokens int64
	every  time.Duration
}

// wide admits what any machine can ask of a key during a run, and refills so slowly that no counter is full again, and
// dropped, before the end.
var wide = limit{tokens: 100_000, every: 1000 * time.Second}

// contenders are listed as the tables show them.
var contenders = []contender{
	{storeName, openStore, 1},
	{checkName, openLimiter, 1},
	{redisRate, openRedisRate, 1},
	{goHash, openGoHash, 1},
	{rueHash, openRueidisHash, 1},
	{bareName, openBare, 1},
}

// pick returns the contenders whose name matches.
func pick(name *regexp.Regexp) []contender {
	var picked []contender
	for _, c := range contenders {
		if name.MatchString(c.name) {
			picked = append(picked, c)
		}
	}
	return picked
}

func names(all []contender) (out []string) {
	for _, c := range all {
		out = append(out, c.name)
	}
	return out
}
