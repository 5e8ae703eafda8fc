package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/internal/load"
)

var (
	// hotLimit is higher than the rate at which any machine can check a single key.
	hotLimit = compare.Limit{Tokens: 1_000_000_000, Every: time.Microsecond}
	// wideLimit also admits everything, but refills so slowly that no bucket is full at the end. So a store that drops
	// full buckets still has to keep all of them.
	wideLimit = compare.Limit{Tokens: 5_000_000, Every: 20 * time.Second}
)

// Names of workloads.
const hotKey = "hot key"

func uniform(keys int) string { return report.Amount(keys) + " uniform" }
func zipf(keys int) string    { return report.Amount(keys) + " Zipf 1.1" }
func weight(keys int) string  { return report.Amount(keys) + " memory" }

// group is a list of workloads that are measured one after the other on the same store, which is filled in advance.
type group struct {
	workloads  []string
	plans      []load.Plan // one for each workload
	rounds     int
	limit      compare.Limit
	keys       int
	contenders []contender
}

func (g *group) add(workload string, c *compare.Config, keys int, d load.Distribution, parts, workers int) {
	if !c.Workloads.MatchString(workload) {
		return
	}
	p := load.Plan{Duration: c.Time / time.Duration(parts), Warmup: c.Warmup / time.Duration(parts), Workers: workers,
		Keys: keys, Distribution: d, Exponent: 1.1, Sample: 64}
	p.Prepare()
	g.workloads, g.plans = append(g.workloads, workload), append(g.plans, p)
}

// hotParts is how many shorter rounds replace one round when two cores compete for one counter. The speed of such a
// workload changes every few seconds: a rival's check took 48 ns for a while, and then 130 ns. With short rounds, all
// contenders get the same share of slow times.
const hotParts = 10

// groups returns the workloads to measure.
func groups(c *compare.Config) []*group {
	cores := runtime.GOMAXPROCS(0)
	picked := func(all []contender) []contender {
		return slices.DeleteFunc(slices.Clone(all), func(o contender) bool { return !c.Contenders.MatchString(o.name) })
	}
	all := picked(contenders)
	hot := &group{rounds: c.Rounds * hotParts, limit: hotLimit, keys: 1, contenders: all}
	hot.add(hotKey, c, 1, load.Hot, hotParts, cores)
	many := &group{rounds: c.Rounds, limit: wideLimit, keys: c.Keys, contenders: all}
	many.add(uniform(c.Keys), c, c.Keys, load.Uniform, 1, cores)
	many.add(zipf(c.Keys), c, c.Keys, load.Zipf, 1, cores)
	web := &group{rounds: c.Rounds, limit: hotLimit, keys: 1000, contenders: picked(httpContenders)}
	web.add(overHTTP, c, 1000, load.Uniform, 1, 16*cores)
	return slices.DeleteFunc([]*group{hot, many, web}, func(g *group) bool { return len(g.workloads) == 0 || len(g.contenders) == 0 })
}

func measureAll(r *command.Run, c *compare.Config) *results {
	var weighed []contender
	for _, o := range contenders {
		// Measure only Allow, since a check by rules needs the same memory.
		if c.Contenders.MatchString(o.name) && c.Workloads.MatchString(weight(c.Keys)) && (o.kind == rival || o.name == allowName) {
			weighed = append(weighed, o)
		}
	}
	keys := compare.MakeKeys(c.Keys)
	out := &results{}
	// Measure memory first, while the heap is small.
	for _, o := range weighed {
		r.Logf("memory at %s keys: %s", report.Amount(c.Keys), o.name)
		r.Part(o.name, func(r *command.Run) { out.footprints = append(out.footprints, weigh(r, o, keys, c.Keys)) })
		debug.FreeOSMemory()
	}
	for _, g := range groups(c) {
		out.tables = append(out.tables, g.run(r, keys)...)
	}
	return out
}

// run measures a group. Every round begins with a different contender.
func (g *group) run(r *command.Run, keys compare.Keys) compare.Tables {
	var names []string
	for _, o := range g.contenders {
		names = append(names, o.name)
	}
	var tables compare.Tables
	for _, workload := range g.workloads {
		tables = append(tables, compare.NewTable(workload, names...))
	}
	for round := range g.rounds {
		for i := range names {
			n := (i + round) % len(names)
			r.Logf("round %d of %d: %s: %s", round+1, g.rounds, strings.Join(g.workloads, ", "), names[n])
			r.Part(names[n], func(r *command.Run) { g.measure(r, keys, n, tables) })
			// Free the memory, so that the next contender starts under the same conditions.
			debug.FreeOSMemory()
		}
	}
	return tables
}

// measure measures the n-th contender in one round, on a new store.
func (g *group) measure(r *command.Run, keys compare.Keys, n int, tables compare.Tables) {
	o := &g.contenders[n]
	in := o.open(r, g.limit, g.keys)
	in.Fill(r, keys, 0, g.keys, runtime.GOMAXPROCS(0))
	for i, t := range tables {
		// Free the garbage from filling the store, which the measurement shouldn't pay for.
		debug.FreeOSMemory()
		t.Add(n, command.Must(compare.Measure(r, g.plans[i], in.Target(keys))))
	}
	if in.Stats != nil {
		if st := in.Stats(); st.Counters != g.keys || st.Evicted > 0 {
			tables[0].Warnings = append(tables[0].Warnings, fmt.Sprintf("%s: keeps %d of %d counters", o.name, st.Counters, g.keys))
		}
	}
}
