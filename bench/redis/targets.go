package main

import (
	"fmt"
	"math"

	"github.com/weirhq/weir/server/bench/internal/report"
)

// judge holds the results against the targets. The store alone is what other
// limiters are; the whole check, with its rules, has to keep the promises as well.
func judge(c *config, r *results) []report.Target {
	busy, quiet := r.table(many(c)), r.table(alone)
	base, bare := busy.row(redisRate), quiet.row(bareName)
	var ts []report.Target
	add := func(name string, bound float64, atLeast bool, s report.Spread, note string) {
		note = fmt.Sprintf("%.2f–%.2f%s", s.Low, s.High, note)
		ts = append(ts, report.Target{Name: name, Bound: bound, AtLeast: atLeast, Got: s.Median, Note: note})
	}
	for _, name := range []string{storeName, checkName} {
		weirs, lone := busy.row(name), quiet.row(name)
		at := many(c) + ": " + name
		add(at+" / redis_rate, checks/s", 4, true, weirs.ratio(base, perSecond), "")
		add(at+" / redis_rate, Redis CPU", 0.35, false, weirs.ratio(base, redisCPU), "")
		add(at+" / redis_rate, p99", 1, false, weirs.ratio(base, p99), "")
		add(alone+": "+name+" / its EVALSHA bare, p50", 1.1, false, lone.ratio(bare, p50),
			fmt.Sprintf(", mean %.2f", 1/lone.ratio(bare, perSecond).Median))
	}
	if c.clients > 0 {
		f := r.footprint(tenName)
		ts = append(ts, report.Target{
			Name: "bytes per counter, " + report.Amount(c.clients) + " clients with ten", Bound: 40, Got: f.bytes,
			Note: fmt.Sprintf("redis_rate %s, usual hash %s", report.Number(r.footprint(redisRate).bytes, 0), report.Number(r.footprint(rueHash).bytes, 0)),
		})
	}
	if c.long > 0 {
		t := report.Target{Name: "slowest script call that a client can provoke, ms", Bound: 1, Got: math.NaN()}
		for i := range r.slowest {
			if ms := r.slowest[i].median(); !(ms <= t.Got) {
				t.Got, t.Note = ms, r.slowest[i].what
			}
		}
		ts = append(ts, t)
	}
	return ts
}
