package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// footprint is how much memory counters take in Redis.
type footprint struct {
	Contender string  `json:"contender"`
	Counters  int     `json:"counters"`
	Keys      int64   `json:"redis_keys"`
	Bytes     float64 `json:"bytes_per_counter"` // of used_memory
	Seconds   float64 `json:"seconds_to_fill"`
}

// weighing is a contender whose memory is measured after so many checks, each of another key.
type weighing struct {
	contender
	checks int
}

func weighings(c *config) []weighing {
	if c.clients == 0 || !c.Workloads.MatchString(memoryWeight) {
		return nil
	}
	var ws []weighing
	for _, w := range []weighing{
		{contender{tenName, openTen(10, 20, 50, 100, 200, 500, 1000, 2000, 10_000, 100_000), 10}, c.clients},
		{contender{largeName, openTen(slices.Repeat([]int64{100_000}, 10)...), 10}, max(2, c.clients/10)},
		// It makes no difference which client writes them.
		{contender{redisRate, openRedisRate, 1}, c.rivals},
		{contender{rueHash, openRueidisHash, 1}, c.rivals},
	} {
		if c.Contenders.MatchString(w.name) {
			ws = append(ws, w)
		}
	}
	return ws
}

// weigh fills an empty server. The first key is written before the measurement begins, so that connections, buffers and
// scripts don't count.
func (w *weighing) weigh(ctx context.Context, c *config, keys workload.Keys) (f footprint, err error) {
	f = footprint{Contender: w.name, Counters: w.checks * w.counters}
	server, err := redistest.Start(redistest.Options{})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	e := &env{server: server, keys: keys, used: w.checks}
	err = w.with(ctx, e, func(in *instance) error {
		if err := fill(ctx, in, 0, 1, 1); err != nil {
			return err
		}
		before, err := settled(ctx, server)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := fill(ctx, in, 1, w.checks, c.goroutines); err != nil {
			return err
		}
		f.Seconds = time.Since(start).Seconds()
		after, err := settled(ctx, server)
		if err != nil {
			return err
		}
		f.Bytes = float64(after-before) / float64((w.checks-1)*w.counters)
		size, err := server.Do(ctx, "DBSIZE")
		f.Keys, _ = size.(int64)
		return err
	})
	return f, err
}

// settled returns the server's memory once it hasn't changed by a thousandth for half a second: Redis shrinks buffers of
// connections and rebuilds tables bit by bit.
func settled(ctx context.Context, server *redistest.Server) (int64, error) {
	last, calm := int64(0), 0
	for range 100 {
		now, err := server.Memory(ctx)
		if err != nil {
			return 0, err
		}
		if diff := now - last; diff*1000 < now && -diff*1000 < now {
			if calm++; calm == 5 {
				return now, nil
			}
		} else {
			calm = 0
		}
		last = now
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return last, nil
}
