package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/workload"
)

// footprint is what counters cost in Redis.
type footprint struct {
	label    string
	counters int
	keys     int64   // of Redis
	bytes    float64 // of used_memory, per counter
	seconds  float64 // that filling took
}

// weighing is a contender whose memory is measured after so many checks of different keys.
type weighing struct {
	contender
	checks int
}

func planWeights(c *config) []weighing {
	if c.clients == 0 || !c.workloads.MatchString(memoryWeight) {
		return nil
	}
	var ws []weighing
	for _, w := range []weighing{
		{contender{tenName, openTen(10, 20, 50, 100, 200, 500, 1000, 2000, 10_000, 100_000), 10}, c.clients},
		{contender{largeName, openTen(slices.Repeat([]int64{100_000}, 10)...), 10}, max(2, c.clients/10)},
		// What client writes them makes no difference.
		{contender{redisRate, openRedisRate, 1}, c.rivals},
		{contender{rueHash, openRueidisHash, 1}, c.rivals},
	} {
		if c.contenders.MatchString(w.name) {
			ws = append(ws, w)
		}
	}
	return ws
}

// weigh fills an empty server. The first key is there before the scale is read, with
// connections, buffers and scripts, which aren't counters.
func (w *weighing) weigh(ctx context.Context, c *config, keys workload.Keys) (f footprint, err error) {
	f = footprint{label: w.name, counters: w.checks * w.counters}
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
		f.seconds = time.Since(start).Seconds()
		after, err := settled(ctx, server)
		if err != nil {
			return err
		}
		f.bytes = float64(after-before) / float64((w.checks-1)*w.counters)
		size, err := server.Do(ctx, "DBSIZE")
		f.keys, _ = size.(int64)
		return err
	})
	return f, err
}

// settled is the memory once buffers of connections have shrunk and tables have
// been rebuilt, which Redis does bit by bit: when it hasn't changed by a thousandth for half a second.
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
