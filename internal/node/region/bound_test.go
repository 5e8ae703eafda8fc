package region

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/counter"
)

var (
	seeds   = flag.Int("seeds", 50, "how many worlds TestRegionsKeepTheBound and TestPlantedBugsAreFound simulate")
	oneSeed = flag.Uint64("seed", 0, "simulate only this one")
)

// TestRegionsKeepTheBound checks that all regions together admit no more than the limit, whatever networks, clocks and
// clients do.
func TestRegionsKeepTheBound(t *testing.T) {
	if *oneSeed != 0 {
		if broken := simulate(t, *oneSeed, nil); broken != "" {
			t.Error(broken)
		}
		return
	}
	for seed, broken := range worlds(t, *seeds, *seeds, nil) {
		t.Errorf("%s; again with -run KeepTheBound -seed %d", broken, seed)
	}
}

// worlds simulates the worlds with seeds 1 to most, until limits were broken in enough of them. It returns the
// violations by seed.
func worlds(t *testing.T, most, enough int, b func() *bug) map[uint64]string {
	var next atomic.Uint64
	var mu sync.Mutex
	found := map[uint64]string{}
	done := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(found) >= enough
	}
	t.Run("seeds", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("worker", func(t *testing.T) {
				t.Parallel()
				for seed := next.Add(1); seed <= uint64(most) && !done(); seed = next.Add(1) {
					if broken := simulate(t, seed, b); broken != "" {
						mu.Lock()
						found[seed] = broken
						mu.Unlock()
					}
				}
			})
		}
	})
	return found
}

// luck is a source of random choices. Each goroutine has its own, so that a seed's world is nearly the same every time.
type luck struct{ *rand.Rand }

func (l luck) fork() luck { return luck{rand.New(rand.NewPCG(l.Uint64(), 0))} }

func (l luck) one(in int) bool { return l.IntN(in) == 0 }

// upTo returns a duration below d.
func (l luck) upTo(d time.Duration) time.Duration { return time.Duration(l.Float64() * float64(d)) }

// pick returns a random index, weighted by parts.
func (l luck) pick(parts []float64) int {
	sum := 0.0
	for _, p := range parts {
		sum += p
	}
	at := l.Float64() * sum
	for i, p := range parts {
		if at -= p; at < 0 {
			return i
		}
	}
	return len(parts) - 1
}

// simulate runs a seed's world, with a bug unless b is nil, and returns how a limit was broken, or "".
func simulate(t *testing.T, seed uint64, b func() *bug) (broken string) {
	synctest.Test(t, func(t *testing.T) {
		l := luck{rand.New(rand.NewPCG(seed, 0))}
		if l.one(3) {
			time.Sleep(24*time.Hour - l.upTo(40*time.Second)) // shortly before the end of a day
		}
		s := newSimulation(t, 2+l.IntN(5))
		if b != nil {
			s.bug = b()
		}
		s.weather(l)
		for _, c := range s.clocks {
			c.drift = 0.002 * (l.Float64() - 0.5)
			c.offset.Store(int64(2e6 * (l.Float64() - 0.5)))
		}
		length := 30*time.Second + l.upTo(40*time.Second)
		if l.one(5) {
			length *= 2
		}
		var counters []*counted
		for i := range 2 {
			p, err := counter.NewPolicy(fmt.Sprint("p", i), drawLimit(l, len(s.sites)))
			if err != nil {
				t.Fatal(err)
			}
			p = p.With(func(d *counter.Definition) { d.Floor = []int{0, 5, 5, 10}[l.IntN(4)] })
			counters = append(counters, s.count(p, "s"))
		}
		s.run()
		until := time.Now().Add(length)
		s.trouble(l, until)
		if l.one(4) {
			s.forgets(l, until)
		}
		for _, c := range counters {
			l := l.fork()
			s.running.Go(func() { s.demand(l, c, until) })
		}
		for time.Now().Before(until) && !s.isBroken() {
			time.Sleep(time.Second)
		}
		s.end()
		broken = s.broken
		if broken != "" {
			broken = fmt.Sprintf("%d regions: %s", len(s.sites), broken)
		}
	})
	return broken
}

// weather sets random conditions of the network: messages and responses may be lost, duplicated or late.
func (s *simulation) weather(l luck) {
	rtt := 50*time.Millisecond + l.upTo(150*time.Millisecond)
	loss, double, late := 0.0, 0.0, 0.1*float64(l.IntN(2))
	if !l.one(3) {
		loss, double = 0.3*l.Float64(), 0.3*l.Float64()
	}
	one := func(l luck) time.Duration {
		switch {
		case l.Float64() < loss:
			return never
		case l.Float64() < late/2:
			return l.upTo(30 * time.Second)
		}
		return rtt/4 + l.upTo(rtt/2)
	}
	between := map[[2]int]luck{}
	for i := range s.sites {
		for j := range s.sites {
			between[[2]int{i, j}] = l.fork()
		}
	}
	var mu sync.Mutex
	s.fate = func(from, to int) []way {
		mu.Lock()
		defer mu.Unlock()
		l := between[[2]int{from, to}]
		ways := []way{{out: one(l), back: one(l)}}
		if l.Float64() < double {
			ways[0].again = l.upTo(10 * time.Second)
		}
		if l.Float64() < double {
			ways = append(ways, way{out: one(l), back: one(l)})
			if l.one(2) { // the response arrives again later
				ways[1].out += l.upTo(10 * time.Second)
			}
		}
		return ways
	}
}

// trouble cuts regions off from each other, makes some die and come back, and steps clocks.
func (s *simulation) trouble(l luck, until time.Time) {
	for i := range s.sites {
		if l.one(2) { // its clock steps, but not twice within a loan's term
			l := l.fork()
			s.running.Go(func() {
				for time.Sleep(l.upTo(20 * time.Second)); time.Now().Before(until); time.Sleep(15*time.Second + l.upTo(15*time.Second)) {
					by := l.upTo(2*time.Second) - time.Second
					if offset := time.Duration(s.clocks[i].offset.Load()) * time.Microsecond; (offset > time.Second) == (by > 0) && offset.Abs() > time.Second {
						by = -by
					}
					s.step(i, by)
				}
			})
		}
		if l.one(5) {
			l := l.fork()
			s.running.Go(func() {
				time.Sleep(l.upTo(30 * time.Second))
				s.kill(i, true)
				time.Sleep(l.upTo(30 * time.Second))
				s.kill(i, false)
			})
		}
		for j := range s.sites {
			if i != j && l.one(4) {
				pairs := [][2]int{{i, j}, {j, i}}[:1+l.IntN(2)]
				l := l.fork()
				s.running.Go(func() {
					time.Sleep(l.upTo(30 * time.Second))
					s.cutOff(true, pairs...)
					time.Sleep(min(l.upTo(90*time.Second), time.Until(until)))
					s.cutOff(false, pairs...)
				})
			}
		}
	}
}

// forgets makes stores lose all their data, or the last seconds of it, as after a failover.
func (s *simulation) forgets(l luck, until time.Time) {
	for i := range s.sites {
		for _, key := range slices.Sorted(maps.Keys(s.counters)) {
			c, l := s.counters[key], l.fork()
			if l.one(2) {
				continue
			}
			s.running.Go(func() {
				for time.Sleep(l.upTo(30 * time.Second)); time.Now().Before(until); time.Sleep(10*time.Second + l.upTo(30*time.Second)) {
					s.forget(i, c, key, l.upTo(15*time.Second)*time.Duration(l.IntN(2)))
				}
			})
		}
	}
}

func (s *simulation) cutOff(cut bool, pairs ...[2]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range pairs {
		s.cut[p] = cut
	}
}

func (s *simulation) kill(i int, dead bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead[i] = dead
}

func (s *simulation) isBroken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken != ""
}

func (s *simulation) isDead(i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead[i]
}

// drawLimit returns a random limit that this many regions can share. A busy one gets 30 requests a second.
func drawLimit(l luck, regions int) counter.Limit {
	count := int64(16*regions + l.IntN(300))
	window := 5*time.Second + l.upTo(20*time.Second).Truncate(time.Second)
	switch l.IntN(6) {
	case 0, 1:
		return counter.Limit{Algorithm: counter.TokenBucket, Count: 2 + int64(l.IntN(30)), Window: time.Second, Burst: count}
	case 2:
		return counter.Limit{Algorithm: counter.LeakyBucket, Count: 2 + int64(l.IntN(30)), Window: time.Second, Burst: count}
	case 3:
		return counter.Limit{Algorithm: counter.FixedWindow, Count: count, Window: window}
	case 4:
		return counter.Limit{Algorithm: counter.FixedWindow, Count: count, Window: 24 * time.Hour, Calendar: counter.Calendar{Unit: counter.Day}}
	}
	return counter.Limit{Algorithm: counter.SlidingCounter, Count: count, Window: window}
}

// demand sends requests for a counter from changing regions, sometimes too many, sometimes few, and sometimes in
// bursts. Some are given back.
func (s *simulation) demand(l luck, c *counted, until time.Time) {
	rate := min(30, float64(c.whole)/10)
	most := 1 + l.IntN(2)*int(c.whole/8)
	parts := make([]float64, len(s.sites))
	for time.Now().Before(until) && !s.over.Load() {
		load := rate * []float64{0.1, 0.5, 1, 1.5}[l.IntN(4)]
		for i := range parts {
			parts[i] = l.Float64() * float64(l.IntN(2))
		}
		parts[l.IntN(len(parts))] = 1
		if l.one(4) { // a pause without requests
			time.Sleep(l.upTo(20 * time.Second))
		}
		burst := 0
		if l.one(3) {
			burst = 20
		}
		for end := time.Now().Add(l.upTo(15 * time.Second)); time.Now().Before(end) && time.Now().Before(until) && !s.over.Load(); burst-- {
			if burst <= 0 {
				time.Sleep(time.Duration(l.ExpFloat64() / load * 1e9))
			}
			i, n := l.pick(parts), 1+int64(l.IntN(most))
			if burst > 0 {
				n = 1 + int64(l.IntN(int(c.whole/20)))
			}
			if s.isDead(i) {
				continue
			}
			back, after := int64(0), l.upTo(10*time.Second)
			if l.one(8) {
				back = 1 + l.Int64N(n)
			}
			s.running.Go(func() {
				if r := s.take(i, c, n); r.Allowed && r.Err == nil && back > 0 {
					time.Sleep(after)
					s.giveBack(i, c, back, r.Slot)
				}
			})
		}
	}
}
