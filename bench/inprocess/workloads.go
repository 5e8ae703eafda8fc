package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/bench/internal/report"
	"github.com/weirhq/weir/server/bench/internal/workload"
	"github.com/weirhq/weir/server/internal/load"
)

// limit is what every contender enforces: a bucket of tokens, one of which comes back after each interval. Contenders
// that count in windows admit as many requests in the time that the whole bucket takes to fill.
type limit struct {
	tokens int64
	every  time.Duration
}

var (
	// hotLimit admits what any machine can ask of one key during a measurement.
	hotLimit = limit{tokens: 1_000_000_000, every: time.Microsecond}
	// wideLimit admits everything, too, but refills so slowly that every key is still worth keeping at the end: a store
	// that forgets full buckets must not get away with an empty table.
	wideLimit = limit{tokens: 5_000_000, every: 20 * time.Second}
	// spentLimit admits one request.
	spentLimit = limit{tokens: 1, every: 1000 * time.Second}
)

func (l limit) perSecond() float64    { return 1 / l.every.Seconds() }
func (l limit) window() time.Duration { return time.Duration(l.tokens) * l.every }

// Names of workloads.
const (
	hotKey  = "hot key"
	refused = "hot key, refused"
)

func uniform(keys int) string { return report.Amount(keys) + " uniform" }
func zipf(keys int) string    { return report.Amount(keys) + " Zipf 1.1" }
func weight(keys int) string  { return report.Amount(keys) + " memory" }

// group is workloads that are measured one after the other on the same store, which is filled beforehand.
type group struct {
	workloads []string
	rounds    int
	limit     limit
	refuses   bool          // every check is over its limit, instead of none
	shorter   time.Duration // factor by which measurements are shorter than usual
	entries   []entry
}

// entry is a contender in a group.
type entry struct {
	contender
	label string // in tables
	keys  int
	plans []load.Plan // one for each workload
}

// plan prepares the load of a workload.
func (c *config) plan(keys int, d load.Distribution) load.Plan {
	p := load.Plan{Duration: c.Time, Warmup: c.Warmup, Workers: runtime.GOMAXPROCS(0), Keys: keys, Distribution: d, Exponent: 1.1, Sample: 64}
	p.Prepare()
	return p
}

// hotParts is how many rounds, each as many times shorter, replace one round where two cores compete for one counter. How
// fast they do that changes every few seconds whatever the code: a rival's check took 48 ns for a while and then 130 ns, so
// with rounds of seconds chance decided which of both a store was compared with. There is nothing to fill, so contenders
// can take turns often enough to share that luck.
const hotParts = 10

// groups lists what to measure.
func groups(c *config) []*group {
	everyone := pick(c, func(contender) bool { return true })
	var all []*group
	add := func(g *group) {
		if len(g.entries) > 0 && len(g.workloads) > 0 {
			all = append(all, g)
		}
	}
	hot := c.plan(1, load.Hot)
	if c.wants(hotKey) {
		add(&group{[]string{hotKey}, c.Rounds * hotParts, hotLimit, false, hotParts, entries(everyone, 1, hot)})
	}
	if c.wants(refused) {
		few := pick(c, func(o contender) bool { return o.kind == weirs || o.name == goLimiter })
		add(&group{[]string{refused}, c.Rounds, spentLimit, true, 1, entries(few, 1, hot)})
	}
	var names []string
	var plans []load.Plan
	if c.wants(uniform(c.Keys)) {
		names, plans = append(names, uniform(c.Keys)), append(plans, c.plan(c.Keys, load.Uniform))
	}
	if c.wants(zipf(c.Keys)) {
		names, plans = append(names, zipf(c.Keys)), append(plans, c.plan(c.Keys, load.Zipf))
	}
	add(&group{names, c.Rounds, wideLimit, false, 1, entries(everyone, c.Keys, plans...)})
	if c.large > 0 && c.wants(uniform(c.large)) {
		add(largeGroup(c))
	}
	if c.wants(httpWorkload) {
		add(httpGroup(c))
	}
	return all
}

// largeGroup compares a store of many keys with the same store of fewer keys in the same rounds.
func largeGroup(c *config) *group {
	fit := pick(c, func(o contender) bool {
		return o.kind == weirs || o.name == goLimiter || c.largeRivals && o.kind == rival
	})
	all := entries(fit, c.large, c.plan(c.large, load.Uniform))
	for _, o := range fit {
		if o.name == storeName {
			all = append(all, entry{o, smallStore(c), c.Keys, []load.Plan{c.plan(c.Keys, load.Uniform)}})
		}
	}
	return &group{[]string{uniform(c.large)}, c.largeRounds, wideLimit, false, 1, all}
}

// smallStore is the label of the store with fewer keys, among those with many.
func smallStore(c *config) string { return storeName + ", " + report.Amount(c.Keys) + " keys" }

func entries(all []contender, keys int, plans ...load.Plan) []entry {
	var out []entry
	for _, o := range all {
		out = append(out, entry{o, o.name, keys, plans})
	}
	return out
}

func measureAll(ctx context.Context, c *config, stderr io.Writer) (*results, error) {
	all, weights := groups(c), weighings(c)
	steps := len(weights)
	for _, g := range all {
		steps += g.rounds * len(g.entries)
	}
	p := report.NewProgress(stderr, steps)
	keys := workload.MakeKeys(max(c.Keys, c.large))
	r := &results{}
	// Memory goes first, while the heap is still small.
	for _, w := range weights {
		p.Step("memory at %s keys: %s", report.Amount(w.keys), w.name)
		f, err := weigh(w.contender, keys, w.keys)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		r.Footprints = append(r.Footprints, f)
		debug.FreeOSMemory()
	}
	for _, g := range all {
		tables, err := g.run(ctx, c, keys, p)
		if err != nil {
			return nil, err
		}
		r.Tables = append(r.Tables, tables...)
	}
	p.Done()
	return r, nil
}

// run measures a group. Every round begins with another contender.
func (g *group) run(ctx context.Context, c *config, keys workload.Keys, p *report.Progress) ([]*compare.Table, error) {
	var labels []string
	for _, e := range g.entries {
		labels = append(labels, e.label)
	}
	var tables []*compare.Table
	for _, name := range g.workloads {
		tables = append(tables, compare.NewTable(name, labels...))
	}
	for round := range g.rounds {
		for i := range g.entries {
			n := (i + round) % len(g.entries)
			e := &g.entries[n]
			p.Step("round %d of %d: %s: %s", round+1, g.rounds, strings.Join(g.workloads, ", "), e.label)
			if err := g.measure(ctx, c, keys, n, tables); err != nil {
				return nil, fmt.Errorf("%s: %w", e.label, err)
			}
			// The next contender finds the memory as this one did.
			debug.FreeOSMemory()
		}
	}
	return tables, nil
}

// measure measures the n-th contender in one round, on a store of its own.
func (g *group) measure(ctx context.Context, c *config, keys workload.Keys, n int, tables []*compare.Table) error {
	e := &g.entries[n]
	in, err := e.open(g.limit, e.keys)
	if err != nil {
		return err
	}
	defer in.close()
	fill(in, keys, e.keys, c.clone)
	for i, t := range tables {
		// Filling leaves garbage, which the measurement would pay for.
		debug.FreeOSMemory()
		setup := compare.Setup{Plan: e.plans[i], Refuses: g.refuses, Again: c.Again}
		setup.Plan.Duration /= g.shorter
		setup.Plan.Warmup /= g.shorter
		var s compare.Sample
		pprof.Do(ctx, pprof.Labels("workload", t.Workload, "contender", e.label), func(ctx context.Context) {
			s, err = setup.Measure(ctx, target{in, keys})
		})
		if err != nil {
			return err
		}
		t.Add(n, s)
	}
	if in.stats != nil {
		if st := in.stats(); st.Counters != e.keys || st.Evicted > 0 {
			tables[0].Warnings = append(tables[0].Warnings, fmt.Sprintf("%s: keeps %d of %d counters", e.label, st.Counters, e.keys))
		}
	}
	return nil
}

// target makes load on an instance.
type target struct {
	instance
	keys workload.Keys
}

func (t target) String() string      { return "in process" }
func (t target) Sender() load.Sender { return sender{t.worker(), t.keys} }

type sender struct {
	check check
	keys  workload.Keys
}

var _ load.Batcher = sender{}

func (s sender) Send(_ context.Context, n uint32) (a load.Answer) {
	if !s.check(s.keys.At(n)) {
		a.Outcome = load.Refused
	}
	return a
}

func (s sender) SendBatch(clients []uint32) (refused int64) {
	for _, n := range clients {
		if !s.check(s.keys.At(n)) {
			refused++
		}
	}
	return refused
}

// fill checks every key once, on all cores.
func fill(in instance, keys workload.Keys, n int, clone bool) {
	var group sync.WaitGroup
	cores := runtime.GOMAXPROCS(0)
	for p := range cores {
		group.Go(func() {
			check := in.worker()
			for i := p * n / cores; i < (p+1)*n/cores; i++ {
				key := keys.At(uint32(i))
				if clone {
					key = strings.Clone(key)
				}
				check(key)
			}
		})
	}
	group.Wait()
}
