package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
)

// footprint is how much memory a contender's counters take in Redis.
type footprint struct {
	contender string
	counters  int
	keys      int64   // number of keys in Redis
	bytes     float64 // growth of used_memory per counter
	filled    time.Duration
}

// weighing is a contender, and the number of checks after which its memory is measured. Each check has a different key.
type weighing struct {
	contender
	counters int // how many counters one check charges
	checks   int
}

func weighings(c *config) []weighing {
	if c.clients == 0 || !c.Workloads.MatchString(memoryWeight) {
		return nil
	}
	var ws []weighing
	for _, w := range []weighing{
		{contender{tenName, openCharges(tenSizes...)}, 10, c.clients},
		{contender{largeName, openCharges(tenLarge...)}, 10, max(2, c.clients/10)},
		// Any client of these contenders would write the same keys.
		{contender{redisRate, openRedisRate}, 1, c.rivals},
		{contender{rueHash, openRueidisHash}, 1, c.rivals},
	} {
		if c.Contenders.MatchString(w.name) {
			ws = append(ws, w)
		}
	}
	return ws
}

// weigh fills an empty server, and measures its memory. It writes the first key before the measurement, so that
// connections and scripts don't count.
func (w *weighing) weigh(ctx context.Context, c *config, keys compare.Keys) (f footprint, err error) {
	f = footprint{contender: w.name, counters: w.checks * w.counters}
	server, err := redistest.Start(redistest.Options{})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	limiter, err := w.open(ctx, server.Addr, time.Minute)
	if err != nil {
		return f, err
	}
	defer limiter.Close()
	if err := limiter.Fill(ctx, keys, 0, 1, 1); err != nil {
		return f, err
	}
	before, err := settled(ctx, server)
	if err != nil {
		return f, err
	}
	start := time.Now()
	if err := limiter.Fill(ctx, keys, 1, w.checks, c.goroutines); err != nil {
		return f, err
	}
	f.filled = time.Since(start)
	after, err := settled(ctx, server)
	if err != nil {
		return f, err
	}
	f.bytes = float64(after-before) / float64((w.checks-1)*w.counters)
	size, err := server.Do(ctx, "DBSIZE")
	f.keys, _ = size.(int64)
	return f, err
}

// settled returns the server's memory when it hasn't changed by more than a thousandth for half a second, because Redis
// shrinks connections' buffers and rebuilds tables gradually.
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

func printFootprints(w io.Writer, all []footprint) {
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "\nMemory: bytes of used_memory per counter, key, table and TTL included\n")
	rows := [][]string{{"", "counters", "Redis keys", "bytes", "filled in"}}
	for _, f := range all {
		rows = append(rows, []string{
			f.contender, report.Amount(f.counters), report.Amount(int(f.keys)), report.Number(f.bytes, 1), report.Number(f.filled.Seconds(), 0) + " s",
		})
	}
	report.Align(w, rows)
	fmt.Fprintln(w, "  ten counters: of 10 to 100,000 tokens; large: of 100,000 tokens each. One token was taken from each.")
}
