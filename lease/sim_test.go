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

	"github.com/weirhq/weir/counter"
	"github.com/weirhq/weir/ledger"
	"github.com/weirhq/weir/storetest"
)

var (
	seeds    = flag.Int("seeds", 500, "how many simulations TestBound runs")
	oneSeed  = flag.Uint64("seed", 0, "run only this one")
	budget   = 50 * time.Millisecond
	errLost  = errors.New("lost")
	lifetime = ledger.MaxLease
)

// world is a simulation in virtual time: nodes with leases, a network that delays and loses messages, and a store that uses the
// arithmetic of package counter. It runs in a bubble of synctest.
type world struct {
	nodes   []*node
	latency time.Duration // each way, at least
	jitter  time.Duration
	loss    float64

	mu       sync.Mutex // guards what follows
	luck     *rand.Rand
	admitted map[counterName][]admission
}

type counterName struct {
	policy *counter.Policy
	key    string
}

type admission struct {
	at   time.Time
	n    int64
	slot int64
}

// node is one node, and its network connection to the store.
type node struct {
	*world
	model   Lender // the store
	leases  *Store
	crashed atomic.Bool
	cutOff  [2]time.Time // while it can't reach the store
}

func newWorld(seed uint64, nodes int) *world {
	w := &world{luck: rand.New(rand.NewPCG(seed, 1)), admitted: map[counterName][]admission{}}
	model := storetest.NewModel(time.Now)
	for i := range nodes {
		n := &node{world: w, model: model.Node(uint32(i + 1))}
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

// trip sends a message through the network, and reports whether it arrived.
func (n *node) trip() bool {
	time.Sleep(n.latency + time.Duration(n.float()*float64(n.jitter)))
	now := time.Now()
	return n.float() >= n.loss && !n.crashed.Load() && !(now.After(n.cutOff[0]) && now.Before(n.cutOff[1]))
}

// Take is never called, because leases always use Lend.
func (n *node) Take(context.Context, []counter.Charge, []counter.Result) { panic("leases lend") }

// Lend calls the store through the network.
func (n *node) Lend(ctx context.Context, asks []ledger.Ask, grants []ledger.Grant) {
	sent := time.Now()
	fail := func() {
		time.Sleep(time.Until(sent.Add(budget)))
		for i := range grants {
			grants[i] = ledger.Grant{Result: counter.Result{Err: errLost}}
		}
	}
	if !n.trip() {
		fail()
		return
	}
	answers := make([]ledger.Grant, len(grants))
	n.model.Lend(ctx, asks, answers)
	if !n.trip() {
		fail()
		return
	}
	copy(grants, answers)
}

// TakeBack calls the store through the network.
func (n *node) TakeBack(ctx context.Context, unspent []ledger.Unspent) error {
	if !n.trip() {
		return errLost
	}
	return n.model.TakeBack(ctx, unspent)
}

// GiveBack calls the store through the network.
func (n *node) GiveBack(ctx context.Context, once counter.Once, keep time.Duration, returns []counter.Return) error {
	if !n.trip() {
		return errLost
	}
	n.mu.Lock()
	for _, r := range returns {
		k := counterName{r.Policy, string(r.Subject)}
		n.admitted[k] = append(n.admitted[k], admission{time.Now(), -r.N, r.Slot})
	}
	n.mu.Unlock()
	return n.model.GiveBack(ctx, once, keep, returns)
}

// Reset calls the store through the network.
func (n *node) Reset(ctx context.Context, counters []counter.Counter) error {
	if !n.trip() {
		return errLost
	}
	return n.model.Reset(ctx, counters)
}

// arrival is one request.
type arrival struct {
	after time.Duration // the one before
	key   string
	cost  int64
	node  int
	back  time.Duration // after which it is given back, if it is admitted; 0 means never
}

// send makes a node decide a request by one or several policies, in a goroutine of its own.
func (w *world) send(done *sync.WaitGroup, n *node, policies []*counter.Policy, a arrival) {
	done.Go(func() {
		if n.crashed.Load() {
			return
		}
		var charges []counter.Charge
		for _, p := range policies {
			charges = append(charges, counter.Charge{Counter: counter.Counter{Policy: p, Subject: []byte(a.key)}, N: a.cost, Returnable: a.back > 0})
		}
		results := make([]counter.Result, len(charges))
		n.leases.Take(context.Background(), charges, results)
		for _, r := range results {
			if !r.Allowed || r.Err != nil {
				return
			}
		}
		if n.crashed.Load() {
			return
		}
		var returns []counter.Return
		w.mu.Lock()
		for i, r := range results {
			k := counterName{policies[i], a.key}
			w.admitted[k] = append(w.admitted[k], admission{time.Now(), a.cost, r.Slot})
			returns = append(returns, counter.Return{Counter: charges[i].Counter, N: a.cost, Slot: r.Slot})
		}
		w.mu.Unlock()
		if a.back > 0 {
			time.Sleep(a.back)
			_ = n.leases.GiveBack(context.Background(), counter.Once{}, 0, returns) // what is lost isn't given back
		}
	})
}

// violation says when more was admitted than the store alone would admit in any period longer by one lease, or returns "".
func violation(p *counter.Policy, as []admission) string {
	sort.SliceStable(as, func(i, j int) bool { return as[i].at.Before(as[j].at) })
	if a := p.Limit.Algorithm; a == counter.FixedWindow || a == counter.SlidingCounter {
		slots := map[int64]int64{}
		for _, a := range as {
			if slots[a.slot] += a.n; slots[a.slot] > p.Limit.Count {
				return fmt.Sprintf("%d of %d in the window at %d", slots[a.slot], p.Limit.Count, a.slot)
			}
		}
		return ""
	}
	// This meter's capacity is a full bucket plus a lease's refill. It must never overflow, which is the bound for all periods
	// at once.
	rate := perNS(p)
	most := float64(p.Limit.Max()) + rate*float64(lifetime)
	level, last := 0.0, time.Time{}
	for _, a := range as {
		if !last.IsZero() {
			level = math.Max(0, level-rate*float64(a.at.Sub(last)))
		}
		last = a.at
		if level = math.Max(0, level+float64(a.n)); level > most+1e-3 {
			return fmt.Sprintf("%.3f in a meter of %.3f, at %v", level, most, a.at.Sub(as[0].at))
		}
	}
	return ""
}

var leasing = []counter.Algorithm{counter.TokenBucket, counter.LeakyBucket, counter.FixedWindow, counter.SlidingCounter}

// TestBound checks that all nodes together never admit more than promised, whatever the network, the nodes and the clients do.
func TestBound(t *testing.T) {
	if *oneSeed != 0 {
		if v := simulate(t, *oneSeed, nil); v != "" {
			t.Error(v)
		}
		return
	}
	most := uint64(*seeds)
	if slow {
		most /= 20 // for races alone
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
					if mine > most || t.Failed() {
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

// perNS returns how many tokens refill in a nanosecond.
func perNS(p *counter.Policy) float64 {
	if p.Limit.Algorithm <= counter.LeakyBucket {
		return float64(p.Refill(1e9)) / 1e18
	}
	return float64(p.Limit.Count) / float64(p.Limit.Window)
}

// simulate runs one world, and says how it broke the bound, or returns "".
func simulate(t *testing.T, seed uint64, spoil func(Lender) Lender) (broken string) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(seed, 8+rng.IntN(40)*rng.IntN(2))
		for _, n := range w.nodes {
			if spoil != nil {
				n.model = spoil(n.model)
			}
		}
		w.latency = time.Duration(rng.IntN(2000)) * time.Microsecond
		w.jitter = time.Duration(rng.IntN(3000)) * time.Microsecond
		if rng.IntN(2) == 0 {
			w.loss = 0.1 * rng.Float64()
		}
		clients := drawClients(t, rng, len(w.nodes))
		if rng.IntN(2) == 0 {
			crash := w.nodes[rng.IntN(len(w.nodes))]
			time.AfterFunc(time.Duration(rng.IntN(1000))*time.Millisecond, func() { crash.crashed.Store(true) })
			cut := w.nodes[rng.IntN(len(w.nodes))]
			from := time.Now().Add(time.Duration(rng.IntN(1000)) * time.Millisecond)
			cut.cutOff = [2]time.Time{from, from.Add(time.Duration(rng.IntN(500)) * time.Millisecond)}
		}
		var done sync.WaitGroup
		for _, c := range clients {
			done.Go(func() {
				for _, a := range c.arrivals {
					time.Sleep(a.after)
					w.send(&done, w.nodes[a.node], c.policies, a)
				}
			})
		}
		done.Wait()
		for _, n := range w.nodes {
			_ = n.leases.Close(context.Background())
		}
		for counted, as := range w.admitted {
			if v := violation(counted.policy, as); v != "" {
				broken = fmt.Sprintf("%s of %s %+v on %d nodes: %s", counted.key, counted.policy.Name, counted.policy.Limit, len(w.nodes), v)
			}
		}
	})
	return broken
}

func drawPolicy(t *testing.T, rng *rand.Rand, name string) *counter.Policy {
	l := counter.Limit{Algorithm: leasing[rng.IntN(len(leasing))], Count: []int64{10, 100, 1000, 5000}[rng.IntN(4)], Window: time.Second}
	switch rng.IntN(4) {
	case 0:
		l.Window = 100 * time.Millisecond * time.Duration(1+rng.IntN(20))
	case 1:
		if l.Algorithm <= counter.LeakyBucket {
			l.Burst = 1 + rng.Int64N(2*l.Count)
		}
	case 2:
		l.Window = time.Duration(2+rng.IntN(60)) * time.Second // slow leases are long here
	}
	return storetest.Policy(t, name, l)
}

// client sends requests that are subject to some limits.
type client struct {
	policies []*counter.Policy
	arrivals []arrival
}

// drawClients draws one client of every kind: one that sends at random, and some that know how leases work.
func drawClients(t *testing.T, rng *rand.Rand, nodes int) []client {
	any := []*counter.Policy{drawPolicy(t, rng, "p")}
	if rng.IntN(3) == 0 { // layers, of which the second refuses more or less often
		any = append(any, drawPolicy(t, rng, "q"))
	}
	bucket := func(name string, l counter.Limit) *counter.Policy {
		l.Algorithm = leasing[rng.IntN(2)]
		return storetest.Policy(t, name, l)
	}
	quick := func(name string) *counter.Policy {
		return bucket(name, counter.Limit{Count: []int64{1000, 3000, 8000}[rng.IntN(3)], Window: time.Second, Burst: 200 + rng.Int64N(300)})
	}
	slow := func(name string) *counter.Policy {
		return bucket(name, counter.Limit{Count: 100 + rng.Int64N(400), Window: time.Minute})
	}
	hoarded, lingering, staying, moving := quick("hoarded"), slow("lingering"), slow("staying"), slow("moving")
	drained := bucket("drained", counter.Limit{Count: 400 + rng.Int64N(800), Window: time.Second, Burst: 50 + rng.Int64N(50)})
	return []client{
		{any, draw(rng, any[0], 1+rng.IntN(nodes))},
		{[]*counter.Policy{hoarded}, hoard(rng, hoarded, nodes)},
		{[]*counter.Policy{drained}, drain(rng, drained, nodes)},
		{[]*counter.Policy{lingering}, linger(rng, lingering, nodes)},
		{[]*counter.Policy{staying}, linger(rng, staying, nodes)},
		{[]*counter.Policy{moving}, move(rng, moving, nodes)},
	}
}

// draw returns the requests of a client: steady, in bursts, or spending everything, waiting for as long as a lease lasts, and
// coming back.
func draw(rng *rand.Rand, p *counter.Policy, nodes int) []arrival {
	rate := perNS(p) * 1e9 * (0.5 + 2.5*rng.Float64())
	keys := 1 + rng.IntN(3)
	costs, backs := rng.IntN(2) == 0, rng.IntN(3) == 0
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
		if backs && rng.IntN(4) == 0 {
			a.back = 1 + time.Duration(rng.IntN(200))*time.Millisecond
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

// borrow makes a node borrow many tokens: with a request that never fits, so that the node expects to need many, and then with
// one that fits. The first one also makes the node forget a refusal of the other kind, which it would otherwise refuse without
// counting.
func borrow(p *counter.Policy, after time.Duration, node int) []arrival {
	const trip = 12 * time.Millisecond
	return []arrival{{after: after, key: "k", cost: 1, node: node}, {after: trip, key: "k", cost: p.Limit.Max() + 1, node: node}, {key: "k", cost: 1, node: node}}
}

// spree asks all nodes for everything there is, and for everything that they could hold, sometimes after a pause in which
// leases end.
func spree(rng *rand.Rand, p *counter.Policy, nodes int, pause time.Duration) (as []arrival) {
	as = append(as, arrival{after: pause, key: "k", cost: 1})
	for range min(4000, 2*(p.Limit.Max()+int64(nodes)*refills(p))) {
		as = append(as, arrival{after: time.Duration(rng.IntN(10)) * time.Microsecond, key: "k", cost: 1, node: rng.IntN(nodes)})
	}
	return as
}

// hoard makes one node after the other borrow, so that tokens given back by one make room for the next, and tokens are held
// while the bucket is full. Then it spends everything.
func hoard(rng *rand.Rand, p *counter.Policy, nodes int) (as []arrival) {
	nodes = min(nodes, 12)
	var each [][]arrival
	for n := range nodes {
		var mine []arrival
		for range 12 + rng.IntN(8) {
			mine = append(mine, borrow(p, time.Duration(rng.IntN(80))*time.Millisecond, n)...)
		}
		each = append(each, mine)
	}
	return append(merge(each), spree(rng, p, nodes, lifetime*time.Duration(rng.IntN(3)))...)
}

// drain makes some nodes borrow tokens that they never spend, and another node spend whatever comes back.
func drain(rng *rand.Rand, p *counter.Policy, nodes int) []arrival {
	const on, off = 100 * time.Millisecond, 100 * time.Millisecond
	gap := time.Duration(0.25 / perNS(p))
	each := make([][]arrival, min(nodes, 8))
	for i := range 3000 {
		a := arrival{after: gap, key: "k", cost: 1}
		if i%int(on/gap) == 0 {
			a.after += off // in which the others find something to borrow
		}
		each[0] = append(each[0], a)
	}
	for n := 1; n < len(each); n++ {
		for range int(2 * 3000 * gap / (50 * time.Millisecond)) {
			each[n] = append(each[n], borrow(p, time.Duration(rng.IntN(80))*time.Millisecond, n)...)
		}
	}
	return merge(each)
}

// merge merges several sequences into one.
func merge(each [][]arrival) (all []arrival) {
	at := map[*arrival]time.Duration{}
	var order []*arrival
	for _, mine := range each {
		elapsed := time.Duration(0)
		for i := range mine {
			elapsed += mine[i].after
			at[&mine[i]] = elapsed
			order = append(order, &mine[i])
		}
	}
	sort.SliceStable(order, func(i, j int) bool { return at[order[i]] < at[order[j]] })
	last := time.Duration(0)
	for _, a := range order {
		one := *a
		one.after, last = at[a]-last, at[a]
		all = append(all, one)
	}
	return all
}

// linger stays with one node until it is lent tokens for seconds, and spends all of them when the lease is about to end.
func linger(rng *rand.Rand, p *counter.Policy, nodes int) (as []arrival) {
	length := 2 * ledger.Interval(p)
	for range 2 {
		for quiet := length * time.Duration(200+rng.IntN(150)) / 100; quiet > 0; {
			after := time.Duration(rng.ExpFloat64() * 2 / perNS(p))
			quiet -= after
			as = append(as, arrival{after: after, key: "k", cost: 1})
		}
		as = append(as, spree(rng, p, nodes, length*time.Duration(rng.IntN(2)*(20+rng.IntN(100)))/100)...)
		as = append(as, arrival{after: 2 * p.Memory(), key: "k", cost: 1})
	}
	return as
}

// move goes from node to node, and stays at each one just long enough for a lease, or not quite.
func move(rng *rand.Rand, p *counter.Policy, nodes int) (as []arrival) {
	rate := perNS(p) * 1e9 * (0.5 + 2*rng.Float64())
	length := 2 * ledger.Interval(p)
	for range 4 {
		node := rng.IntN(nodes)
		for stay := length * time.Duration(10+rng.IntN(200)) / 100; stay > 0 && len(as) < 2000; {
			after := time.Duration(rng.ExpFloat64() / rate * 1e9)
			stay -= after
			as = append(as, arrival{after: after, key: "k", cost: 1 + rng.Int64N(1+p.Limit.Max()/8)*int64(rng.IntN(30)/29), node: node})
		}
	}
	return as
}
