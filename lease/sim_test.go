package lease

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir"
	"github.com/weirhq/weir/storetest"
)

var (
	seeds    = flag.Int("seeds", 1000, "how many simulations TestBound runs")
	oneSeed  = flag.Uint64("seed", 0, "run only this one")
	budget   = 50 * time.Millisecond
	errLost  = errors.New("lost")
	lifetime = weir.MaxLease
)

// world is a simulation in virtual time: nodes with their leases, a network that
// delays and loses, and a store that is the arithmetic of package weir. It runs in a bubble of synctest.
type world struct {
	model   weir.Store
	nodes   []*node
	latency time.Duration // each way, at least
	jitter  time.Duration
	loss    float64

	mu       sync.Mutex // guards what follows
	luck     *rand.Rand
	admitted map[counterName][]admission
}

type counterName struct {
	policy *weir.Policy
	key    string
}

type admission struct {
	at   time.Time
	n    int64
	slot int64
}

// node is one Weir, and the way from it to the store.
type node struct {
	*world
	leases  *Store
	crashed atomic.Bool
	cutOff  [2]time.Time // while it can't reach the store
}

func newWorld(seed uint64, nodes int) *world {
	w := &world{luck: rand.New(rand.NewPCG(seed, 1)), model: storetest.NewModel(time.Now), admitted: map[counterName][]admission{}}
	for range nodes {
		n := &node{world: w}
		n.leases = New(n, Options{Counters: 64})
		w.nodes = append(w.nodes, n)
	}
	return w
}

func (w *world) float() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.luck.Float64()
}

// trip is one way through the network, and reports whether the message arrived.
func (n *node) trip() bool {
	time.Sleep(n.latency + time.Duration(n.float()*float64(n.jitter)))
	now := time.Now()
	return n.float() >= n.loss && !n.crashed.Load() && !(now.After(n.cutOff[0]) && now.Before(n.cutOff[1]))
}

// Take is the store, from far.
func (n *node) Take(ctx context.Context, charges []weir.Charge, results []weir.Result) {
	sent := time.Now()
	fail := func() {
		time.Sleep(time.Until(sent.Add(budget)))
		for i := range results {
			results[i] = weir.Result{Err: errLost}
		}
	}
	if !n.trip() {
		fail()
		return
	}
	answers := make([]weir.Result, len(results))
	n.model.Take(ctx, charges, answers)
	if !n.trip() {
		fail()
		return
	}
	copy(results, answers)
}

// GiveBack is the store's, from far.
func (n *node) GiveBack(ctx context.Context, once weir.Once, keep time.Duration, returns []weir.Return) error {
	if !n.trip() {
		return errLost
	}
	return n.model.GiveBack(ctx, once, keep, returns)
}

// Reset is the store's, from far.
func (n *node) Reset(ctx context.Context, counters []weir.Counter) error {
	if !n.trip() {
		return errLost
	}
	return n.model.Reset(ctx, counters)
}

// arrival is a request that comes.
type arrival struct {
	after time.Duration // the one before
	key   string
	cost  int64
	node  int
}

// send lets a node decide a request by one policy or several, beside the caller.
func (w *world) send(done *sync.WaitGroup, n *node, policies []*weir.Policy, a arrival) {
	done.Go(func() {
		if n.crashed.Load() {
			return
		}
		var charges []weir.Charge
		for _, p := range policies {
			charges = append(charges, weir.Charge{Counter: weir.Counter{Policy: p, Subject: []byte(a.key)}, N: a.cost})
		}
		results := make([]weir.Result, len(charges))
		n.leases.Take(context.Background(), charges, results)
		for _, r := range results {
			if !r.Allowed || r.Err != nil {
				return
			}
		}
		if n.crashed.Load() {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, r := range results {
			k := counterName{policies[i], a.key}
			w.admitted[k] = append(w.admitted[k], admission{time.Now(), a.cost, r.Slot})
		}
	})
}

// violation tells where more was admitted than the store alone would admit in any time and one lease's, or "".
func violation(p *weir.Policy, as []admission) string {
	sort.SliceStable(as, func(i, j int) bool { return as[i].at.Before(as[j].at) })
	if a := p.Limit.Algorithm; a == weir.FixedWindow || a == weir.SlidingCounter {
		slots := map[int64]int64{}
		for _, a := range as {
			if slots[a.slot] += a.n; slots[a.slot] > p.Limit.Count {
				return fmt.Sprintf("%d of %d in the window at %d", slots[a.slot], p.Limit.Count, a.slot)
			}
		}
		return ""
	}
	// A meter as large as a full bucket and a lease's refill never overflows: that is the bound for all intervals at once.
	rate := p.Terms().Refill
	most := float64(p.Limit.Max()) + rate*float64(lifetime)
	level, last := 0.0, time.Time{}
	for _, a := range as {
		if !last.IsZero() {
			level = math.Max(0, level-rate*float64(a.at.Sub(last)))
		}
		last = a.at
		if level += float64(a.n); level > most+1e-3 {
			return fmt.Sprintf("%.3f in a meter of %.3f, at %v", level, most, a.at.Sub(as[0].at))
		}
	}
	return ""
}

var leasing = []weir.Algorithm{weir.TokenBucket, weir.LeakyBucket, weir.FixedWindow, weir.SlidingCounter}

// TestBound: whatever the network, the nodes and the clients do, all nodes together admit no more than promised.
func TestBound(t *testing.T) {
	if *oneSeed != 0 {
		if v := simulate(t, *oneSeed, nil); v != "" {
			t.Error(v)
		}
		return
	}
	var next sync.Mutex
	seed := uint64(0)
	t.Run("seeds", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("worker", func(t *testing.T) {
				t.Parallel()
				for {
					next.Lock()
					seed++
					mine := seed
					next.Unlock()
					if mine > uint64(*seeds) || t.Failed() {
						return
					}
					if v := simulate(t, mine, nil); v != "" {
						t.Errorf("%s; again with -run TestBound -seed %d", v, mine)
					}
				}
			})
		}
	})
}

// naive lends as one would without thinking: it debits, and adds what comes back to whatever is there.
type naive struct {
	mu     sync.Mutex // guards states
	states map[string]weir.State
}

func (n *naive) Take(_ context.Context, charges []weir.Charge, results []weir.Result) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now, c := time.Now().UnixMicro(), charges[0]
	s, ok := c.Policy.Try(n.states[string(c.Subject)], now, c.N)
	if !ok {
		results[0] = c.Policy.Report(s, now, c.N, weir.Refused)
		return
	}
	lent := min(c.Want, c.Policy.Report(s, now, c.N, weir.Taken).Remaining/2)
	if lent > 0 {
		s, _ = c.Policy.Try(s, now, lent)
	}
	n.states[string(c.Subject)] = s
	results[0] = c.Policy.Report(s, now, c.N, weir.Taken)
	results[0].Lent, results[0].LentFor = lent, lifetime
}

func (n *naive) GiveBack(_ context.Context, _ weir.Once, _ time.Duration, returns []weir.Return) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range returns {
		now := time.Now().UnixMicro()
		n.states[string(r.Subject)] = r.Policy.Return(n.states[string(r.Subject)], now, r.N, r.Slot)
	}
	return nil
}

func (n *naive) Reset(context.Context, []weir.Counter) error { return nil }

// TestNaiveLendingIsCaught: the simulation would see it if a bucket forgot what it has lent.
func TestNaiveLendingIsCaught(t *testing.T) {
	for seed := uint64(1); seed < 5000; seed++ {
		if simulate(t, seed, &naive{states: map[string]weir.State{}}) != "" {
			return
		}
	}
	t.Error("5000 simulations with a store that mints tokens broke no bound")
}

// simulate runs one world and tells how it broke the bound, or "".
func simulate(t *testing.T, seed uint64, store weir.Store) (broken string) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(seed, 1+rng.IntN(50)*rng.IntN(2)+rng.IntN(4))
		if store != nil {
			w.model = store
		}
		w.latency = time.Duration(rng.IntN(2000)) * time.Microsecond
		w.jitter = time.Duration(rng.IntN(3000)) * time.Microsecond
		if rng.IntN(2) == 0 {
			w.loss = 0.1 * rng.Float64()
		}
		policies := []*weir.Policy{drawPolicy(t, rng, "p")}
		if store == nil && rng.IntN(3) == 0 { // layers, of which the second refuses more or less often
			policies = append(policies, drawPolicy(t, rng, "q"))
		}
		arrivals := draw(rng, policies[0], len(w.nodes))
		if rng.IntN(2) == 0 {
			crash := w.nodes[rng.IntN(len(w.nodes))]
			time.AfterFunc(time.Duration(rng.IntN(1000))*time.Millisecond, func() { crash.crashed.Store(true) })
			cut := w.nodes[rng.IntN(len(w.nodes))]
			from := time.Now().Add(time.Duration(rng.IntN(1000)) * time.Millisecond)
			cut.cutOff = [2]time.Time{from, from.Add(time.Duration(rng.IntN(500)) * time.Millisecond)}
		}
		var done sync.WaitGroup
		for _, a := range arrivals {
			time.Sleep(a.after)
			w.send(&done, w.nodes[a.node], policies, a)
		}
		done.Wait()
		for _, n := range w.nodes {
			_ = n.leases.Close(context.Background())
		}
		for counter, as := range w.admitted {
			if v := violation(counter.policy, as); v != "" {
				broken = fmt.Sprintf("%s of %+v on %d nodes: %s", counter.key, counter.policy.Limit, len(w.nodes), v)
			}
		}
	})
	return broken
}

func drawPolicy(t *testing.T, rng *rand.Rand, name string) *weir.Policy {
	l := weir.Limit{Algorithm: leasing[rng.IntN(len(leasing))], Count: []int64{10, 100, 1000, 5000}[rng.IntN(4)], Window: time.Second}
	switch rng.IntN(4) {
	case 0:
		l.Window = 100 * time.Millisecond * time.Duration(1+rng.IntN(20))
	case 1:
		if l.Algorithm <= weir.LeakyBucket {
			l.Burst = 1 + rng.Int64N(2*l.Count)
		}
	case 2:
		l.Window = time.Duration(2+rng.IntN(60)) * time.Second // slow leases are long here
	}
	return storetest.Policy(t, name, l)
}

// draw makes the requests of a run: steady, in bursts, by one who spends all, waits for as long as a
// lease lasts, and comes back, or by one who makes nodes hold tokens until the bucket is full again, and then
// spends all: many tokens for a moment, or a few for long.
func draw(rng *rand.Rand, p *weir.Policy, nodes int) []arrival {
	rate := p.Terms().Refill * 1e9
	switch rng.IntN(6) {
	case 0:
		return hoard(rng, p, nodes, rate)
	case 1:
		return linger(rng, p, nodes, rate)
	}
	rate *= 0.5 + 2.5*rng.Float64()
	keys := 1 + rng.IntN(3)
	costs := rng.IntN(2) == 0
	kind := rng.IntN(3)
	length := time.Duration(300+rng.IntN(1200)) * time.Millisecond
	var as []arrival
	for elapsed, on := time.Duration(0), 0; elapsed < length && len(as) < 3000; on++ {
		a := arrival{
			after: time.Duration(rng.ExpFloat64() / rate * 1e9),
			key:   fmt.Sprint("k", rng.IntN(keys)*rng.IntN(2)),
			cost:  1,
			node:  rng.IntN(nodes),
		}
		if costs && rng.IntN(4) == 0 {
			a.cost = 1 + rng.Int64N(min(20, p.Limit.Max()))
		}
		switch {
		case kind == 1 && on%100 == 0:
			a.after = time.Duration(rng.IntN(200)) * time.Millisecond
		case kind == 1:
			a.after /= 10
		case kind == 2 && on%int(2*p.Limit.Max()+1) == 0:
			a.after = lifetime/2*time.Duration(rng.IntN(4)) + time.Duration(rng.IntN(10))*time.Millisecond
		case kind == 2:
			a.after = time.Duration(rng.IntN(100)) * time.Microsecond
		}
		elapsed += a.after
		as = append(as, a)
	}
	return as
}

// hoard keeps nodes believing that they need tokens, with requests that are far too large, and has them
// borrow with small ones, no faster than the bucket refills.
func hoard(rng *rand.Rand, p *weir.Policy, nodes int, rate float64) []arrival {
	const every = 70 * time.Millisecond
	nodes = max(1, min(nodes, int(rate*every.Seconds()*(0.3+0.6*rng.Float64()))))
	var as []arrival
	for range 5 + rng.IntN(25) {
		for n := range nodes {
			as = append(as, arrival{key: "k", cost: p.Limit.Max() + 1, node: n}, arrival{key: "k", cost: 1, node: n})
		}
		as = append(as, arrival{after: every, key: "k", cost: p.Limit.Max() + 1})
	}
	for range min(3000, 3*p.Limit.Max()) {
		as = append(as, arrival{after: time.Duration(rng.IntN(20)) * time.Microsecond, key: "k", cost: 1, node: rng.IntN(nodes)})
	}
	return as
}

// linger asks seldom, so that nodes hold tokens for as long as they may, and spends all when some are about to end.
func linger(rng *rand.Rand, p *weir.Policy, nodes int, rate float64) []arrival {
	rate /= 1 + 40*rng.Float64()*rng.Float64()
	length := p.Terms().SlowLease
	var as []arrival
	for range 1 + rng.IntN(3) {
		for quiet := max(time.Second, length) * time.Duration(70+rng.IntN(250)) / 100; quiet > 0 && len(as) < 2000; {
			after := time.Duration(rng.ExpFloat64() / rate * 1e9)
			quiet -= after
			as = append(as, arrival{after: after, key: "k", cost: 1, node: rng.IntN(nodes)})
		}
		for range min(2000, 2*p.Limit.Max()) {
			as = append(as, arrival{after: time.Duration(rng.IntN(20)) * time.Microsecond, key: "k", cost: 1, node: rng.IntN(nodes)})
		}
	}
	return as
}
