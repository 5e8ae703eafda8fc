package main

import (
	"context"
	_ "embed"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/weirhq/weir/redisstore"
	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
)

// opener connects a limiter to a server.
type opener func(r *command.Run, addr string, timeout time.Duration) *compare.Limiter

// contender is one way to limit through Redis.
type contender struct {
	name string
	open opener
}

const (
	storeName = "Weir store"
	checkName = "Weir whole check"
	tenName   = "Weir, ten counters a client"
	largeName = "Weir, ten large counters a client"
	redisRate = "redis_rate 10.0.1"
	rueHash   = "rueidis, hash script"
)

// wide is a limit that admits everything that a machine can check for one key during a run. It refills so slowly that
// no counter is full again before the end. Redis would delete a full counter.
var wide = compare.Limit{Tokens: 100_000, Every: 1000 * time.Second}

// contenders are listed in the order of the printed tables.
var contenders = []contender{
	{storeName, openCharges(wide)},
	{checkName, openWeir(func(s *redisstore.Store) func() compare.Check {
		return compare.WholeCheck(s, compare.HundredRules(wide, ""))
	})},
	{redisRate, openRedisRate},
	{rueHash, openRueidisHash},
}

// ten returns limits with the given numbers of tokens.
func ten(tokens ...int64) (limits []compare.Limit) {
	for _, n := range tokens {
		limits = append(limits, compare.Limit{Tokens: n, Every: wide.Every})
	}
	return limits
}

var (
	tenSizes = ten(10, 20, 50, 100, 200, 500, 1000, 2000, 10_000, 100_000)
	tenLarge = slices.Repeat([]compare.Limit{wide}, 10)
)

// openCharges opens the store without rules. Each check charges one counter for each limit.
func openCharges(limits ...compare.Limit) opener {
	return openWeir(func(s *redisstore.Store) func() compare.Check { return compare.Charge(s, limits...) })
}

// openWeir opens a store with default options. If timeout isn't 0, it replaces the default.
func openWeir(checks func(*redisstore.Store) func() compare.Check) opener {
	return func(r *command.Run, addr string, timeout time.Duration) *compare.Limiter {
		s := command.Must(redisstore.New(redisstore.Options{URL: "redis://" + addr, Secret: []byte("bench"), Timeout: timeout}))
		r.Cleanup(s.Close)
		ctx, cancel := context.WithTimeout(r, 10*time.Second)
		defer cancel()
		command.Check(s.Ready(ctx))
		return &compare.Limiter{Worker: checks(s)}
	}
}

//go:embed usual.lua
var usual string

const usualPrefix = "bucket:"

var background = context.Background()

// limiterOf returns a limiter with one check for all goroutines.
func limiterOf(allow func(key string) (bool, error)) *compare.Limiter {
	return compare.Shared(func(key string) error {
		allowed, err := allow(key)
		if err == nil && !allowed {
			return compare.ErrRefused
		}
		return err
	})
}

func openRedisRate(r *command.Run, addr string, _ time.Duration) *compare.Limiter {
	client := redis.NewClient(&redis.Options{Addr: addr})
	r.Cleanup(func() { _ = client.Close() })
	limiter := redis_rate.NewLimiter(client)
	l := redis_rate.Limit{Rate: 1, Period: wide.Every, Burst: int(wide.Tokens)}
	return limiterOf(func(key string) (bool, error) {
		res, err := limiter.Allow(background, key, l)
		return err == nil && res.Allowed > 0, err
	})
}

// openRueidisHash makes a client without client-side caching, which doesn't help here, and without pings. If a ping
// coincides with a command, the client switches to pipelining permanently. That doubles the latency of a single
// goroutine, and would happen to contenders at random.
func openRueidisHash(r *command.Run, addr string, _ time.Duration) *compare.Limiter {
	client := command.Must(rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{addr}, DisableCache: true, Dialer: net.Dialer{KeepAlive: -1},
	}))
	r.Cleanup(client.Close)
	script := rueidis.NewLuaScript(usual)
	tokens := strconv.FormatInt(wide.Tokens, 10)
	rate := strconv.FormatFloat(wide.PerSecond(), 'f', -1, 64)
	return limiterOf(func(key string) (bool, error) {
		now := strconv.FormatFloat(float64(time.Now().UnixMicro())/1e6, 'f', 6, 64)
		res, err := script.Exec(background, client, []string{usualPrefix + key}, []string{tokens, rate, now, "1"}).AsIntSlice()
		return err == nil && res[0] == 1, err
	})
}
