package main

import (
	"context"
	"slices"
	"time"

	"github.com/weirhq/weir/internal/redistest"
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
	var ws []weighing
	if c.clients == 0 || !c.workloads.MatchString(memoryWeight) {
		return nil
	}
	for _, o := range weighed {
		if !c.contenders.MatchString(o.name) {
			continue
		}
		checks := c.rivals
		if o.counters > 1 {
			checks = c.clients
		}
		ws = append(ws, weighing{o, checks})
	}
	return ws
}

// weighed are the layouts: what client wrote them makes no difference.
var weighed = []contender{
	{tenName, openTen(10, 20, 50, 100, 200, 500, 1000, 2000, 10_000, 100_000), 10},
	{largeName, openTen(slices.Repeat([]int64{100_000}, 10)...), 10},
	{redisRate, openRedisRate, 1},
	{rueHash, openRueidisHash, 1},
}

// weigh fills an empty server. The first key is there before the scale is read, with
// connections, buffers and scripts, which aren't counters.
func (w *weighing) weigh(ctx context.Context, c *config, e *env) (footprint, error) {
	f := footprint{label: w.name, counters: w.checks * w.counters}
	if err := e.server.RestartEmpty(); err != nil {
		return f, err
	}
	err := w.with(ctx, e, func(in *instance) error {
		if err := fill(ctx, in, 0, 1, 1); err != nil {
			return err
		}
		before, err := settled(ctx, e.server)
		if err != nil {
			return err
		}
		start := time.Now()
		if err := fill(ctx, in, 1, w.checks, c.goroutines); err != nil {
			return err
		}
		f.seconds = time.Since(start).Seconds()
		after, err := settled(ctx, e.server)
		if err != nil {
			return err
		}
		f.bytes = float64(after-before) / float64((w.checks-1)*w.counters)
		size, err := e.server.Do(ctx, "DBSIZE")
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
