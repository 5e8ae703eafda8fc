package region

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/internal/node/stake"
)

var everyCell = flag.Bool("cells", false, "run every cell of the table of lost admissions, not some")

// load describes requests for a counter in several regions.
type load struct {
	name string
	// rate returns the requests a second at some time, as a multiple of the limit's rate. parts returns how they are
	// spread over the regions.
	rate  func(at time.Duration) float64
	parts func(at time.Duration, regions int) []float64
	costs []int64       // costs of requests, all equally likely; nil means 1
	rtt   time.Duration // zero means 150 ms
}

func steady(times float64) load {
	return load{name: fmt.Sprintf("steady 60/30/10, %v×", times), rate: func(time.Duration) float64 { return times }, parts: func(_ time.Duration, regions int) []float64 {
		return []float64{60, 30, 10, 10, 10, 10}[:regions]
	}}
}

// mixed returns the load with requests of cost 1, 3 and 10.
func mixed(of load) load {
	of.name, of.costs = of.name+", costs 1, 3 and 10", []int64{1, 3, 10}
	return of
}

// slow returns the load with regions that are farther apart than a request waits.
func slow(of load) load {
	of.name, of.rtt = of.name+", 600 ms there and back", 600*time.Millisecond
	return of
}

// moves sends all requests to one region, and after some time to the next one.
func moves(every time.Duration) load {
	return load{name: fmt.Sprintf("moves every %v, 0.9×", every), rate: func(time.Duration) float64 { return 0.9 }, parts: func(at time.Duration, regions int) []float64 {
		parts := make([]float64, regions)
		parts[int(at/every)%regions] = 1
		return parts
	}}
}

// alone sends all requests to one region that isn't the home.
func alone(times float64) load {
	return load{name: fmt.Sprintf("one region, not the home, %v×", times), rate: func(time.Duration) float64 { return times }, parts: func(_ time.Duration, regions int) []float64 {
		return []float64{0, 1, 0, 0, 0, 0}[:regions]
	}}
}

// sun makes each region busy in turn, for 20 s.
var sun = load{name: "follows the sun, 0.9×", rate: func(time.Duration) float64 { return 0.9 }, parts: func(at time.Duration, regions int) []float64 {
	parts := make([]float64, regions)
	for i := range parts {
		phase := at.Seconds()/20 - float64(i)
		parts[i] = max(0.02, math.Pow(max(0, math.Cos(math.Pi*phase/float64(regions))), 8), math.Pow(max(0, -math.Cos(math.Pi*phase/float64(regions))), 8))
	}
	return parts
}}

// bursts sends half of a bucket's capacity within 2 s, once a minute, to one region after the other, each of which is
// idle otherwise. The home has a few requests in between.
func bursts(p *counter.Policy) load {
	perSecond := float64(p.Refill(1e9)) / 1e9
	inBurst := float64(p.Limit.Max()) / 2 / 2 / perSecond
	return load{name: "half a burst in 2 s in a cold region, each minute", rate: func(at time.Duration) float64 {
		if at%time.Minute < 2*time.Second {
			return inBurst
		}
		return 0.1
	}, parts: func(at time.Duration, regions int) []float64 {
		parts := make([]float64, regions)
		if at%time.Minute < 2*time.Second {
			parts[1+int(at/time.Minute)%(regions-1)] = 1
		} else {
			parts[0] = 1
		}
		return parts
	}}
}

// figures are the results of a load. Amounts are in requested units.
type figures struct {
	exact, admitted    int64
	entries            float64 // asks and responses a second
	messages           float64 // messages a second, by the region that sends the most
	waited, mostWaited time.Duration
}

func (f figures) lost() float64 { return float64(f.exact-f.admitted) / float64(max(1, f.exact)) }

// measure runs a load against regions and against one exact limiter, until that limiter has admitted enough, or for the
// time most. Messages between regions are counted after the warm-up.
func measure(t *testing.T, regions, keys int, l counter.Limit, of load, enough int64, warm, most time.Duration) (f figures) {
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(t, regions)
		p, err := counter.NewPolicy("p", l)
		if err != nil {
			t.Fatal(err)
		}
		p = p.With(func(d *counter.Definition) { d.Floor, d.Global = 5, true })
		if half := of.rtt / 2; half > 0 {
			s.fate = func(int, int) []way { return []way{{out: half, back: half}} }
		}
		s.run()
		luck := luck{rand.New(rand.NewPCG(1, uint64(keys)))}
		states := make([]counter.State, keys)
		perSecond := float64(keys) * float64(l.Max()) / l.Window.Seconds()
		if l.Algorithm <= counter.LeakyBucket {
			perSecond = float64(keys) * float64(p.Refill(1e9)) / 1e9
		}
		costs := of.costs
		if costs == nil {
			costs = []int64{1}
		}
		sum := int64(0)
		for _, n := range costs {
			sum += n
		}
		perSecond *= float64(len(costs)) / float64(sum)
		start, begun := time.Now(), time.Now()
		at := time.Duration(0)
		whole := func() bool { return l.Algorithm != counter.FixedWindow || time.Now().Truncate(l.Window) != begun } // a budget must be used up to the end
		exact, admitted := map[int64]int64{}, map[int64]int64{}                                                      // by window, because a request may wait until the next one
		last := int64(0)
		windowOf := func(slot int64) int64 {
			if l.Algorithm == counter.FixedWindow {
				return slot
			}
			return 0
		}
		entries, messages := int64(0), make([]int64, regions)
		count := func() {
			entries = s.entries.Load()
			for i := range regions {
				messages[i] = s.messages[i].Load()
			}
		}
		for (f.exact < enough || !whole()) && at < most {
			begun = time.Now().Truncate(l.Window)
			time.Sleep(time.Duration(luck.ExpFloat64() / (perSecond * of.rate(at)) * 1e9))
			if at = time.Since(start); at < warm {
				count()
			}
			i, key, n := luck.pick(of.parts(at, regions)), luck.IntN(keys), costs[luck.IntN(len(costs))]
			var fits bool
			if states[key], fits = p.Try(states[key], time.Now().UnixMicro(), n); fits {
				f.exact += n
				last = windowOf(stake.Begun(p, time.Now().UnixMicro()))
				exact[last] += n
			}
			s.running.Go(func() {
				var r [1]counter.Result
				asked := time.Now()
				s.sites[i].Take(t.Context(), []counter.Charge{{Counter: counter.Counter{Policy: p, Subject: fmt.Append(nil, key)}, N: n}}, r[:])
				s.mu.Lock()
				defer s.mu.Unlock()
				if r[0].Allowed && r[0].Err == nil {
					f.admitted += n
					admitted[windowOf(r[0].Slot)] += n
					f.waited += time.Since(asked)
					f.mostWaited = max(f.mostWaited, time.Since(asked))
				}
			})
		}
		entriesThen, messagesThen := entries, slices.Clone(messages)
		count()
		passed := (at - warm).Seconds()
		f.entries = float64(entries-entriesThen) / passed
		for i := range regions {
			f.messages = max(f.messages, float64(messages[i]-messagesThen[i])/passed)
		}
		time.Sleep(time.Second)
		s.end()
		if l.Algorithm == counter.FixedWindow { // ignores the last window, which has just started
			delete(exact, last)
			f.exact, f.admitted = 0, 0
			for window, n := range exact {
				f.exact, f.admitted = f.exact+n, f.admitted+admitted[window]
			}
		}
	})
	return f
}

// TestManyHotKeys checks that a thousand busy counters cost each region a bounded number of messages, and only a few
// asks and responses per counter over all regions.
func TestManyHotKeys(t *testing.T) {
	keys := 60
	if *everyCell {
		keys = 1000
	}
	for _, c := range []struct {
		load
		from, to time.Duration
		lost     float64 // highest accepted loss
	}{
		{steady(0.9), 0, 3 * time.Second, 0.001},
		{steady(0.9), 10 * time.Second, 13 * time.Second, 0.001},
		{steady(1.5), 0, 3 * time.Second, 0.05},
		{steady(1.5), 10 * time.Second, 13 * time.Second, 0.02},
		{alone(1.5), 0, 3 * time.Second, 0.25},
		{alone(1.5), 10 * time.Second, 13 * time.Second, 0.1},
	} {
		f := measure(t, 3, keys, counter.PerSecond(100), c.load, math.MaxInt64, c.from, c.to)
		t.Logf("%d keys, %s, %v to %v: lost %.3f%% of %d, entries/s %.0f, messages/s of a region %.1f", keys, c.name, c.from, c.to, 100*f.lost(), f.exact, f.entries, f.messages)
		if f.entries > 8*float64(keys) || f.messages > 40 || f.lost() > c.lost {
			t.Errorf("%s: %.0f entries/s, %.1f messages/s, and %.3f%% are lost", c.name, f.entries, f.messages, 100*f.lost())
		}
	}
}

// TestLostAdmissions prints how much regions refuse that one exact limiter admits, and how many messages they exchange.
func TestLostAdmissions(t *testing.T) {
	perSecond, perMinute, slower := counter.PerSecond(100), counter.PerMinute(1000), counter.PerMinute(100)
	window := func(n int64) counter.Limit {
		return counter.Limit{Algorithm: counter.FixedWindow, Count: n, Window: time.Minute}
	}
	policy := func(l counter.Limit) *counter.Policy { return policyOf(t, "p", l, true) }
	cells := []struct {
		regions int
		limit   counter.Limit
		load    load
		most    float64 // highest accepted loss; 0 if there is no promise
		ci      bool
	}{
		{3, perSecond, steady(0.5), 0.001, true},
		{3, perSecond, steady(0.9), 0.001, true},
		{3, perSecond, sun, 0.001, true},
		{3, perSecond, steady(1.5), 0, false},
		{3, perSecond, alone(0.9), 0, false},
		{3, perSecond, alone(1.5), 0, false},
		{3, perSecond, bursts(policy(perSecond)), 0, false},
		{3, perSecond, moves(10 * time.Second), 0, false},
		{3, perSecond, moves(4 * time.Second), 0, false},
		{3, perSecond, mixed(steady(0.5)), 0, false},
		{3, perSecond, mixed(steady(0.9)), 0, false},
		{3, perSecond, slow(steady(0.9)), 0.08, true},
		{3, perMinute, steady(0.5), 0.001, false},
		{3, perMinute, steady(0.9), 0.001, false},
		{3, perMinute, sun, 0.001, false},
		{3, perMinute, steady(1.5), 0, false},
		{3, perMinute, alone(0.9), 0, false},
		{3, perMinute, alone(1.5), 0, false},
		{3, perMinute, bursts(policy(perMinute)), 0, false},
		{3, perMinute, moves(10 * time.Second), 0, false},
		{3, perMinute, moves(4 * time.Second), 0, false},
		{3, perMinute, mixed(steady(0.5)), 0, false},
		{3, perMinute, mixed(steady(0.9)), 0, false},
		{3, perMinute, slow(steady(0.9)), 0, false},
		{3, slower, steady(0.5), 0, false},
		{3, slower, steady(0.9), 0, false},
		{3, slower, sun, 0, false},
		{3, slower, steady(1.5), 0, false},
		{3, slower, alone(0.9), 0, false},
		{3, slower, alone(1.5), 0, false},
		{3, slower, bursts(policy(slower)), 0, false},
		{3, slower, moves(10 * time.Second), 0, false},
		{3, slower, moves(4 * time.Second), 0, false},
		{3, slower, mixed(steady(0.5)), 0, false},
		{3, slower, mixed(steady(0.9)), 0, false},
		{3, slower, slow(steady(0.9)), 0, false},
		{5, perSecond, steady(0.5), 0, false},
		{5, perSecond, steady(0.9), 0, false},
		{5, perSecond, sun, 0, false},
		{5, perSecond, steady(1.5), 0, false},
		{3, window(1000), steady(1.5), 1e-9, true},
		{3, window(20_000), steady(1.5), 1e-9, true},
		{3, window(50), steady(1.5), 0, false},
		{3, window(1000), sun, 1e-9, false},
	}
	for _, c := range cells {
		if !c.ci && !*everyCell {
			continue
		}
		f := measure(t, c.regions, 1, c.limit, c.load, 10_000, 0, 2*time.Hour)
		t.Logf("%d regions, %v %-11v %-50s lost %7.3f%% of %6d, waited %5.1f ms (at most %v), entries/s %5.2f, messages/s of a region %5.2f", c.regions, c.limit.Algorithm, c.limit, c.load.name,
			100*f.lost(), f.exact, float64(f.waited.Microseconds())/1000/float64(max(1, f.admitted)), f.mostWaited, f.entries, f.messages)
		if c.most > 0 && f.lost() >= c.most {
			t.Errorf("%d regions, %v, %s: %d of %d are lost", c.regions, c.limit, c.load.name, f.exact-f.admitted, f.exact)
		}
	}
}
