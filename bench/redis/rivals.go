package main

import (
	"context"
	_ "embed"
	"net"
	"strconv"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/weirhq/weir/server/bench/internal/compare"
)

//go:embed usual.lua
var usual string

const usualPrefix = "bucket:"

var background = context.Background()

// limiterOf is a limiter whose check all goroutines may use.
func limiterOf(allow func(key string) (bool, error), close func()) *compare.Limiter {
	return compare.Shared(func(key string) error {
		allowed, err := allow(key)
		if err == nil && !allowed {
			return compare.ErrRefused
		}
		return err
	}, close)
}

func openRedisRate(_ context.Context, addr string, _ time.Duration) (*compare.Limiter, error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	limiter := redis_rate.NewLimiter(client)
	l := redis_rate.Limit{Rate: 1, Period: wide.Every, Burst: int(wide.Tokens)}
	return limiterOf(func(key string) (bool, error) {
		res, err := limiter.Allow(background, key, l)
		return err == nil && res.Allowed > 0, err
	}, func() { _ = client.Close() }), nil
}

// openRueidisHash makes a client without client-side caching, which is of no use here. It doesn't ping, either: a ping at
// the same time as a command turns the client to pipelining for good, which doubles the latency of a single goroutine, and
// it is luck which contender that happens to.
func openRueidisHash(_ context.Context, addr string, _ time.Duration) (*compare.Limiter, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{addr}, DisableCache: true, Dialer: net.Dialer{KeepAlive: -1},
	})
	if err != nil {
		return nil, err
	}
	script := rueidis.NewLuaScript(usual)
	tokens := strconv.FormatInt(wide.Tokens, 10)
	rate := strconv.FormatFloat(wide.PerSecond(), 'f', -1, 64)
	return limiterOf(func(key string) (bool, error) {
		now := strconv.FormatFloat(float64(time.Now().UnixMicro())/1e6, 'f', 6, 64)
		res, err := script.Exec(background, client, []string{usualPrefix + key}, []string{tokens, rate, now, "1"}).AsIntSlice()
		return err == nil && res[0] == 1, err
	}, client.Close), nil
}
