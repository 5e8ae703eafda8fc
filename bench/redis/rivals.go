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
)

//go:embed usual.lua
var usual string

const usualPrefix = "bucket:"

func openRedisRate(_ context.Context, e *env) (*instance, error) {
	client := redis.NewClient(&redis.Options{Addr: e.server.Addr})
	limiter := redis_rate.NewLimiter(client)
	l := redis_rate.Limit{Rate: 1, Period: wide.every, Burst: int(wide.tokens)}
	return &instance{
		worker: func() check {
			return func(n uint32) error {
				res, err := limiter.Allow(background, e.keys.At(n), l)
				if err != nil {
					return err
				}
				if res.Allowed == 0 {
					return errRefused
				}
				return nil
			}
		},
		close: func() { _ = client.Close() },
	}, nil
}

func openGoHash(_ context.Context, e *env) (*instance, error) {
	client := redis.NewClient(&redis.Options{Addr: e.server.Addr})
	script := redis.NewScript(usual)
	return &instance{
		worker: func() check {
			return func(n uint32) error {
				res, err := script.Run(background, client, []string{usualPrefix + e.keys.At(n)},
					wide.tokens, 1/wide.every.Seconds(), seconds(time.Now()), 1).Int64Slice()
				if err != nil {
					return err
				}
				if res[0] != 1 {
					return errRefused
				}
				return nil
			}
		},
		close: func() { _ = client.Close() },
	}, nil
}

func openRueidisHash(_ context.Context, e *env) (*instance, error) {
	client, err := newRueidis(e)
	if err != nil {
		return nil, err
	}
	script := rueidis.NewLuaScript(usual)
	tokens := strconv.FormatInt(wide.tokens, 10)
	rate := strconv.FormatFloat(1/wide.every.Seconds(), 'f', -1, 64)
	return &instance{
		worker: func() check {
			return func(n uint32) error {
				now := strconv.FormatFloat(seconds(time.Now()), 'f', 6, 64)
				res, err := script.Exec(background, client, []string{usualPrefix + e.keys.At(n)}, []string{tokens, rate, now, "1"}).AsIntSlice()
				if err != nil {
					return err
				}
				if res[0] != 1 {
					return errRefused
				}
				return nil
			}
		},
		close: client.Close,
	}, nil
}

// newRueidis makes a client without client-side caching, which is of no use here. It doesn't ping, either: a ping at the same
// time as a command turns the client to pipelining for good, which doubles the latency of a single goroutine, and it is
// luck which contender that happens to.
func newRueidis(e *env) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{e.server.Addr}, DisableCache: true, Dialer: net.Dialer{KeepAlive: -1},
	})
}

// seconds is a time as the usual script takes it: a float with microseconds.
func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
