package main

import (
	"fmt"
	"math"

	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
)

// judge compares the results with the targets. The store alone does what other limiters do; the whole check, with its
// rules, has to keep the promises as well.
func judge(c *config, r *results) []report.Target {
	busy, quiet := r.table(many(c)), r.table(alone)
	base, bare := busy.Row(redisRate), quiet.Row(bareName)
	var ts []report.Target
	add := func(name string, bound float64, atLeast bool, s report.Spread, note string) {
		note = fmt.Sprintf("%.2f–%.2f%s", s.Low, s.High, note)
		ts = append(ts, report.Target{Name: name, Bound: bound, AtLeast: atLeast, Got: s.Median, Note: note})
	}
	for _, name := range []string{storeName, checkName} {
		weirs, lone := busy.Row(name), quiet.Row(name)
		at := many(c) + ": " + name
		add(at+" / redis_rate, checks/s", 4, true, weirs.Ratio(base, compare.PerSecond), "")
		add(at+" / redis_rate, Redis CPU", 0.35, false, weirs.Ratio(base, compare.RedisCPU), "")
		add(at+" / redis_rate, p99", 1, false, weirs.Ratio(base, compare.P99), "")
		add(alone+": "+name+" / its EVALSHA bare, p50", 1.1, false, lone.Ratio(bare, compare.P50),
			fmt.Sprintf(", mean %.2f", 1/lone.Ratio(bare, compare.PerSecond).Median))
	}
	if c.clients > 0 {
		f := r.footprint(tenName)
		ts = append(ts, report.Target{
			Name: "bytes per counter, " + report.Amount(c.clients) + " clients with ten", Bound: 40, Got: f.Bytes,
			Note: fmt.Sprintf("redis_rate %s, usual hash %s", report.Number(r.footprint(redisRate).Bytes, 0), report.Number(r.footprint(rueHash).Bytes, 0)),
		})
	}
	if c.long > 0 {
		t := report.Target{Name: "slowest script call that a client can provoke, ms", Bound: 1, Got: math.NaN()}
		for i := range r.Slowest {
			if ms := r.Slowest[i].median(); !(ms <= t.Got) {
				t.Got, t.Note = ms, r.Slowest[i].Act
			}
		}
		ts = append(ts, t)
	}
	return ts
}
