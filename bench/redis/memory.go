package main

import (
	"fmt"
	"io"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
)

// footprint is how much memory a contender's counters take in Redis after a number of checks, each with a different key.
type footprint struct {
	contender
	each   int // how many counters each check charges
	checks int

	keys   int64   // number of keys in Redis
	bytes  float64 // growth of used_memory per counter
	filled time.Duration
}

// footprints returns what to measure.
func footprints(c *config) (all []footprint) {
	if c.clients == 0 || !c.Workloads.MatchString(memoryWeight) {
		return nil
	}
	for _, f := range []footprint{
		{contender: contender{tenName, openCharges(tenSizes...)}, each: 10, checks: c.clients},
		{contender: contender{largeName, openCharges(tenLarge...)}, each: 10, checks: max(2, c.clients/10)},
		// Any client of these contenders would write the same keys.
		{contender: contender{redisRate, openRedisRate}, each: 1, checks: c.rivals},
		{contender: contender{rueHash, openRueidisHash}, each: 1, checks: c.rivals},
	} {
		if c.Contenders.MatchString(f.name) {
			all = append(all, f)
		}
	}
	return all
}

// measure fills an empty server, and measures its memory. It writes the first key before the measurement, so that
// connections and scripts don't count.
func (f *footprint) measure(r *command.Run, c *config, keys compare.Keys) {
	server := redistest.New(r, redistest.Options{})
	limiter := f.open(r, server.Addr, time.Minute)
	limiter.Fill(r, keys, 0, 1, 1)
	before, start := settled(r, server), time.Now()
	limiter.Fill(r, keys, 1, f.checks, c.goroutines)
	f.filled = time.Since(start)
	f.bytes = float64(settled(r, server)-before) / float64((f.checks-1)*f.each)
	f.keys, _ = command.Must(server.Do(r, "DBSIZE")).(int64)
}

// settled waits until the server's memory hasn't changed by more than a thousandth for half a second, and returns it.
// It waits because Redis shrinks connections' buffers and rebuilds tables gradually.
func settled(r *command.Run, server *redistest.Server) int64 {
	last, calm := int64(0), 0
	for i := 0; i < 100 && calm < 5; i++ {
		now := command.Must(server.Memory(r))
		if diff := now - last; diff*1000 < now && -diff*1000 < now {
			calm++
		} else {
			calm = 0
		}
		last = now
		time.Sleep(100 * time.Millisecond)
	}
	return last
}

func printFootprints(w io.Writer, all []footprint) {
	if len(all) == 0 {
		return
	}
	fmt.Fprint(w, "\nMemory: bytes of used_memory per counter, key, table and TTL included\n")
	rows := [][]string{{"", "counters", "Redis keys", "bytes", "filled in"}}
	for _, f := range all {
		rows = append(rows, []string{
			f.name, report.Amount(f.checks * f.each), report.Amount(int(f.keys)), report.Number(f.bytes, 1), report.Number(f.filled.Seconds(), 0) + " s",
		})
	}
	report.Align(w, rows)
	fmt.Fprintln(w, "  ten counters: of 10 to 100,000 tokens; large: of 100,000 tokens each. One token was taken from each.")
}
