package main

import (
	"context"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"github.com/weirhq/weir/internal/redistest"
	"github.com/weirhq/weir/server/bench/internal/command"
	"github.com/weirhq/weir/server/bench/internal/compare"
	"github.com/weirhq/weir/server/internal/load"
)

// entry is a contender that is ready for a workload. Its server holds every key.
type entry struct {
	contender
	server  *redistest.Server
	limiter *compare.Limiter
}

// race fills a server for every contender, or one server for all if there is only one goroutine. Then the contenders take
// turns.
func race(r *command.Run, c *config, workload string, contenders []contender, keys compare.Keys) *compare.Table {
	var server *redistest.Server
	var entries []entry
	var names []string
	for _, o := range contenders {
		r.Logf("%s: fill: %s", workload, o.name)
		if server == nil || workload != alone {
			server = redistest.New(r, redistest.Options{})
		}
		entries, names = append(entries, entry{o, server, o.fill(r, c, server, keys)}), append(names, o.name)
	}
	t := compare.NewTable(workload, names...)
	plan := load.Plan{Duration: c.Time, Warmup: c.Warmup, Workers: c.goroutines, Keys: c.Keys}
	plan.Prepare()
	measure := inTurns
	if workload == alone {
		measure = interleave
	}
	rng := rand.New(rand.NewPCG(3, 0))
	for round := range c.Rounds {
		r.Logf("%s: round %d of %d", workload, round+1, c.Rounds)
		for n, s := range measure(r, plan, entries, keys, rng) {
			t.Add(n, s)
		}
	}
	return t
}

// fill writes every key to a server, and returns a limiter with new connections, because load may have changed the client
// permanently.
func (o *contender) fill(r *command.Run, c *config, server *redistest.Server, keys compare.Keys) *compare.Limiter {
	r.Part(o.name, func(r *command.Run) {
		limiter := o.open(r, server.Addr, time.Minute) // all clients connect at the same time, which may take long
		limiter.Fill(r, keys, 0, c.Keys, c.goroutines)
	})
	debug.FreeOSMemory() // the next measurement must not pay for the garbage
	return o.open(r, server.Addr, c.timeout)
}

// inTurns measures the contenders one after the other. The order is random, because each contender finds what the
// previous one left in the CPU's caches.
func inTurns(r *command.Run, plan load.Plan, entries []entry, keys compare.Keys, rng *rand.Rand) []compare.Sample {
	samples := make([]compare.Sample, len(entries))
	for _, n := range rng.Perm(len(entries)) {
		plan.StoreCPU = entries[n].server.CPU
		samples[n] = command.Must(compare.Measure(r, plan, entries[n].limiter.Target(keys)))
	}
	return samples
}

// interleave measures all contenders with one goroutine on the same server. The contenders take turns at every check,
// because latency depends much more on which cores the kernel chooses, and on whether the server is asleep, than on the
// contender. Taking turns spreads this effect evenly.
func interleave(r *command.Run, plan load.Plan, entries []entry, keys compare.Keys, rng *rand.Rand) []compare.Sample {
	t := &interleaved{keys: keys, rng: rng}
	for n, e := range entries {
		t.turns = append(t.turns, turn{n: n, check: e.limiter.Worker()})
	}
	plan.Workers, plan.StoreCPU = 1, entries[0].server.CPU
	plan.Duration *= time.Duration(len(entries))
	all := command.Must(compare.Measure(r, plan, t))
	samples := make([]compare.Sample, len(entries))
	for _, turn := range t.turns {
		samples[turn.n] = turn.sample(all.Others)
	}
	return samples
}

// interleaved sends each request to every contender, in random order.
type interleaved struct {
	turns []turn
	keys  compare.Keys
	rng   *rand.Rand
}

// turn is one contender, and the times of its checks.
type turn struct {
	n     int // index of the contender
	check compare.Check
	took  []time.Duration
	wrong int64
	fault error
}

func (t *interleaved) String() string      { return "Redis" }
func (t *interleaved) Sender() load.Sender { return t }

// Send times the check of each contender separately.
func (t *interleaved) Send(_ context.Context, key uint32) load.Answer {
	t.rng.Shuffle(len(t.turns), func(i, j int) { t.turns[i], t.turns[j] = t.turns[j], t.turns[i] })
	for i := range t.turns {
		turn := &t.turns[i]
		begin := time.Now()
		err := turn.check(t.keys.At(key))
		turn.took = append(turn.took, time.Since(begin))
		if err != nil {
			turn.wrong++
			turn.fault = err
		}
	}
	return load.Answer{}
}

// sample returns the results of a contender. The contenders share the CPU time, so the CPU time of each is unknown.
func (t *turn) sample(others float64) compare.Sample {
	r := &load.Report{Checks: int64(len(t.took)), Allowed: int64(len(t.took)) - t.wrong}
	for _, d := range t.took {
		r.Seconds += d.Seconds()
	}
	if slices.Sort(t.took); len(t.took) > 0 {
		r.Latency.P50, r.Latency.P99 = t.took[len(t.took)/2], t.took[len(t.took)*99/100]
	}
	if t.fault != nil {
		r.Faults = []load.Fault{{Text: t.fault.Error(), Count: t.wrong}}
	}
	return compare.Sample{Report: r, Allocs: math.NaN(), Others: others}
}
